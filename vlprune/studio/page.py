"""The page: gradio's components over a `Visit`. Needs gradio, which comes with `vlprune[studio]`."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from html import escape
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from vlprune.errors import MethodError, UserError
from vlprune.evaluation.load_model import LoadedModel
from vlprune.media.video import VIDEO_ENDINGS
from vlprune.methods import list_methods
from vlprune.show.style import line_looks
from vlprune.studio.canvas import EMPTY, OVERLAYS
from vlprune.studio.examples import Example
from vlprune.studio.fragments import ASSETS, method_text, pair_html
from vlprune.studio.runs import read_accuracy
from vlprune.studio.visit import Asked, ParseMethod, Visit

COMPARED_FIRST = ("script", "script_plus", "cdpruner", "random")
DEFAULT_KEEP = 64
STARTS_WITH = "There is no image yet."
PUT_RIGHT = (UserError, MethodError, ValueError)  # by the user; all else is a fault of ours


def _uploaded_path(payload: Any) -> str | None:
    """The path of an uploaded file as it is: what may be opened, and how, is the business of `media.image`."""
    if payload is None:
        return None
    if payload.path is None:
        raise gr.Error("the image was not uploaded.", print_exception=False)
    return str(payload.path)


class _Controls(NamedTuple):
    """The components that several events read or write."""

    visit: Any
    image: Any
    video: Any
    question: Any
    method: Any
    keep: Any
    overlay: Any
    step: Any
    canvas: Any
    sentence: Any
    pair: Any

    @property
    def asked(self) -> list[Any]:
        """What is asked: question, method and budget."""
        return [self.question, self.method, self.keep]

    @property
    def looks(self) -> list[Any]:
        """What shows a choice."""
        return [self.canvas, self.sentence, self.overlay, self.step, self.keep]


def as_sentence(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with what a user can put right shown as the sentence that the command line would print."""

    @wraps(function)
    def called(*args: Any) -> Any:
        try:
            return function(*args)
        except PUT_RIGHT as error:
            raise gr.Error(_sentence(error), duration=12, print_exception=False) from error

    @wraps(function)
    def iterated(*args: Any) -> Iterator[Any]:
        try:
            yield from function(*args)
        except PUT_RIGHT as error:
            raise gr.Error(_sentence(error), duration=12, print_exception=False) from error

    return iterated if isgeneratorfunction(function) else called


def _sentence(error: Exception) -> str:
    """An error's sentence on one line, for gradio, which reads HTML in it."""
    return escape(" ".join(str(error).split()), quote=False)


def build_page(
    loaded: LoadedModel, parse_method: ParseMethod, examples: Sequence[Example], encoder: str | None = None
) -> gr.Blocks:
    """The page for a loaded model; all visits share the model, one call at a time, and nothing else.

    `encoder` names the dual encoder that was loaded beside the model, if one was named.
    """
    with gr.Blocks(title="vlprune studio", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        visit = gr.State(Visit(loaded, threading.Lock(), parse_method, encoder), time_to_live=3600)
        gr.Markdown(
            f"# vlprune studio\nWhat each method keeps of an image, and what **{_plain(loaded.name)}** answers from "
            "it. Everything stays on this machine."
        )
        controls = _lay_out_top(visit, loaded, examples)
        with gr.Tabs():
            _ask_tab(controls)
            _compare_tab(controls)
            _explain_tab(controls)
            _take_away_tab(controls)
            _runs_tab()
        _connect(controls)
        begun = page.load(**_event(_open, [visit, controls.image], [controls.canvas, controls.sentence]))
        begun.then(**_event(_choose, [visit, *controls.asked], controls.looks))
    return page


def _plain(text: str) -> str:
    """A text without what Markdown would read."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|])", r"\\\1", text)


def _lay_out_top(visit: Any, loaded: LoadedModel, examples: Sequence[Example]) -> _Controls:
    """Image, question, method and budget on the left, the picture on the right."""
    takes_video = getattr(loaded.processor, "video_processor", None) is not None
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            sources: Any = ["upload", "webcam", "clipboard"]
            begins = examples[0].image if examples else None
            image = gr.Image(begins, label="Image", type="filepath", sources=sources, height=260)
            image.preprocess = _uploaded_path  # gradio's own would open it
            endings: Any = list(VIDEO_ENDINGS)
            video = gr.File(label="or a video", file_types=endings, visible=takes_video, height=120)
            first = examples[0].question if examples else ""
            question = gr.Textbox(label="Question", value=first, max_lines=3, info="Enter chooses for it.")
            method = gr.Dropdown(
                list_methods(),
                value="script",
                label="Method",
                allow_custom_value=True,
                info="Settings go behind a colon: script:fusion=filter,rho=0.5",
            )
            keep = gr.Slider(1, 576, value=DEFAULT_KEEP, step=1, label="Tokens to keep")
            gr.Examples(
                [list(example) for example in examples],
                inputs=[image, question],
                label="Examples that come with vlprune",
                cache_examples=False,
            )
        with gr.Column(scale=3, min_width=320):
            canvas = gr.HTML(EMPTY, js_on_load=(ASSETS / "canvas.js").read_text(encoding="utf-8"), elem_id="tokens")
            sentence = gr.Markdown(STARTS_WITH, elem_id="sentence")
            overlay = gr.Radio(list(OVERLAYS[:1]), value=OVERLAYS[0], label="Show")
            step = gr.Slider(0, DEFAULT_KEEP, value=DEFAULT_KEEP, step=1, label="Play the choices, one by one")
            pair = gr.HTML(pair_html(None), elem_id="pair")
    return _Controls(visit, image, video, question, method, keep, overlay, step, canvas, sentence, pair)


def _event(function: Callable[..., Any], inputs: list[Any], outputs: list[Any], **options: Any) -> dict[str, Any]:
    """The arguments of an event; all that touch the model wait in one queue."""
    private = {"api_visibility": "private", "concurrency_id": "model", "concurrency_limit": 1}
    return {"fn": as_sentence(function), "inputs": inputs, "outputs": outputs, **private, **options}


def _connect(on: _Controls) -> None:
    """What happens when the image, the question, the method, the budget or the view changes, or a token is picked."""
    chosen = _event(_choose, [on.visit, *on.asked], on.looks, trigger_mode="always_last", show_progress="minimal")
    for file in (on.image, on.video):  # the choice is made for what is asked when the file is open
        file.change(**_event(_open, [on.visit, file], [on.canvas, on.sentence])).then(**chosen)
    # one event for the three: its calls follow each other, where those of three events may arrive in any order
    gr.on([on.question.submit, on.method.change, on.keep.change], **chosen)
    redrawn = _event(_redraw, [on.visit, on.overlay, on.step], [on.canvas], show_progress="hidden")
    on.overlay.change(**redrawn, trigger_mode="always_last")
    on.step.change(**redrawn, trigger_mode="always_last")
    on.canvas.select(**_event(_pick, [on.visit, on.overlay, on.step], [on.pair, on.canvas], show_progress="hidden"))


def _open(visit: Visit, path: str | None) -> list[Any]:
    """Look at another file."""
    try:
        visit.open(path)
    except PUT_RIGHT as error:
        return _no_picture(error)[:2]
    return [EMPTY, STARTS_WITH] if path is None else [gr.skip(), gr.skip()]


def _choose(visit: Visit, question: str, method: str, keep: int) -> list[Any]:
    """Choose tokens anew."""
    if not visit.has_image:
        return [gr.skip()] * 5
    known = visit.overlays
    try:
        look = visit.select(Asked(question, method, int(keep)))
    except PUT_RIGHT as error:
        return _no_picture(error)
    return [
        look.canvas,
        look.sentence,
        # where the same can be shown, the page may know of a later click than we do
        gr.skip() if look.overlays == known else gr.update(choices=look.overlays, value=look.overlay),
        gr.update(maximum=max(1, look.choices), value=look.choices, interactive=look.choices > 0),
        gr.update(maximum=look.tokens),
    ]


def _no_picture(error: Exception) -> list[Any]:
    """What stands in place of the picture: an old one would not be of what is asked now."""
    gr.Warning(_sentence(error), duration=12, title="Error")
    return [EMPTY, _plain(" ".join(str(error).split())), gr.skip(), gr.skip(), gr.skip()]


def _redraw(visit: Visit, overlay: str, step: int) -> str:
    """Show another map, or fewer choices."""
    return visit.look(overlay, int(step)).canvas


def _pick(visit: Visit, overlay: str, step: int, event: gr.EventData) -> tuple[str, str]:
    """Pick a token of the picture."""
    pair = visit.pick(int(event.token))
    return pair, visit.look(overlay, int(step)).canvas


def _ask_tab(on: _Controls) -> None:
    with gr.Tab("Ask"):
        button = gr.Button("Answer with all tokens, and with the kept ones", variant="primary")
        answers, costs = gr.HTML(elem_id="answers"), gr.HTML(elem_id="costs")
        button.click(**_event(_ask, [on.visit, *on.asked], [answers, costs], show_progress="minimal"))


def _ask(visit: Visit, question: str, method: str, keep: int) -> Iterator[tuple[str, str]]:
    """Answer, as it is written."""
    yield from visit.ask(Asked(question, method, int(keep)))


def _compare_tab(on: _Controls) -> None:
    with gr.Tab("Compare"):
        names = gr.Dropdown(
            list_methods(),
            value=[name for name in COMPARED_FIRST if name in list_methods()],
            label="Two to six methods, at the budget above",
            multiselect=True,
            max_choices=6,
            allow_custom_value=True,
        )
        button = gr.Button("Compare", variant="primary")
        results = gr.HTML(elem_id="compared")
        button.click(**_event(_compare, [on.visit, *on.asked, names], [results], show_progress="minimal"))


def _compare(visit: Visit, question: str, method: str, keep: int, names: list[str]) -> Iterator[str]:
    """Answer by each method."""
    yield from visit.compare(Asked(question, method, int(keep)), names)


def _explain_tab(on: _Controls) -> None:
    with gr.Tab("Explain"):
        gr.Markdown("Script in five steps on this image. Pick a token in the picture to follow it.")
        button = gr.Button("Explain", variant="primary")
        steps = gr.HTML(elem_id="steps")
        button.click(**_event(Visit.explain, [on.visit], [steps]))
        with gr.Accordion("The method, from docs/method.md", open=True):
            gr.Markdown(method_text(), sanitize_html=False)


def _take_away_tab(on: _Controls) -> None:
    with gr.Tab("Take away"):
        button = gr.Button("Make code and files", variant="primary")
        boxes: dict[str, Any] = {"interactive": False, "wrap_lines": True, "lines": 1}
        code = gr.Code(label="Python", language="python", **boxes)
        line = gr.Code(label="Command line", language="shell", **boxes)
        told = "The image, pictures of what is kept (PNG, SVG), and the record (JSON)"
        files = gr.Files(label=told, interactive=False, elem_id="files")
        button.click(**_event(_take_away, [on.visit], [code, line, files]))


def _take_away(visit: Visit) -> tuple[str, str, list[str]]:
    """Code, command line and files."""
    folder = Path(tempfile.mkdtemp(prefix="vlprune-"))  # gradio copies what it offers, and deletes that in time
    return *visit.code(), [str(path) for path in visit.files(folder)]


def _runs_tab() -> None:
    with gr.Tab("Runs"):
        gr.Markdown("Accuracy against budget: drop the `result.json` of a finished run of `vlprune eval` here.")
        file = gr.File(label="result.json", file_types=[".json"], height=120)
        plot = gr.LinePlot(
            x="tokens",
            y="right",
            color="method",
            x_title="visual tokens that enter the LLM",
            y_title="right answers, %",
            tooltip="all",
            height=420,
            visible=False,
        )
        file.change(**_event(_plot_run, [file], [plot]))


def _plot_run(path: str | None) -> Any:
    """The run's curves; hovering shows the numbers."""
    if path is None:
        return gr.update(visible=False)
    import pandas

    points = read_accuracy(path)
    looks = line_looks(list(dict.fromkeys(point.method for point in points)))
    colors = {name: look["color"] for name, look in looks.items()}
    table = pandas.DataFrame([point._asdict() for point in points])
    return gr.update(value=table, color_map=colors, visible=True)

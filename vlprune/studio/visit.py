"""What one browser tab looks at: its session, method and picked tokens, as the HTML and files that the page shows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vlprune.devices import input_device
from vlprune.errors import UserError
from vlprune.evaluation.compare import MethodResult
from vlprune.evaluation.load_model import LoadedModel
from vlprune.evaluation.one_question import describe_counts
from vlprune.evaluation.reference_methods import ALL_TOKENS
from vlprune.methods import Method
from vlprune.record import Record
from vlprune.show import picture_title
from vlprune.studio.canvas import EMPTY, available_overlays, draw_canvas
from vlprune.studio.explain import compute_steps, describe_steps, explained_script
from vlprune.studio.fragments import answers_html, compare_html, cost_html, pair_html, steps_html
from vlprune.studio.session import Choice, Session
from vlprune.studio.takeaway import command_line, long_python_code, python_code, record_json, write_files

#: From the text of a method and of a budget, as the commands take them, to the method.
ParseMethod = Callable[[str, str | None], Method]
COMPARED = (2, 6)  # methods at least and at most


class Look(NamedTuple):
    """What the page shows of a choice: the picture, a sentence, what can be shown, and the number of choices."""

    canvas: str
    sentence: str
    overlay: str
    overlays: list[str]
    choices: int
    tokens: int


class Asked(NamedTuple):
    """A question, a method and a budget, as they stand on the page."""

    question: str
    method: str
    keep: int

    @property
    def budget(self) -> str | None:
        """The budget, as --keep takes it; None where the method says itself what to keep."""
        return None if "keep=" in self.method or "@" in self.method else str(self.keep)


class Visit:
    """One tab of a browser. Nothing of it is shared with other tabs but the model and its lock."""

    def __init__(
        self, loaded: LoadedModel, lock: threading.Lock, parse_method: ParseMethod, encoder: str | None = None
    ) -> None:
        """`encoder` names the dual encoder that was loaded beside the model, if one was named."""
        self.session = Session(loaded, lock)
        self._lock, self._parse, self._encoder = lock, parse_method, encoder
        self._path: str | None = None
        self._choice: Choice | None = None
        self._asked: Asked | None = None
        self._picked: list[int] = []
        self._answer: str | None = None
        self._overlay = "kept"
        self.overlays: list[str] = []  # the maps that can be shown

    def __deepcopy__(self, memo: object) -> Visit:
        """A visit that has seen nothing yet: gradio gives each tab a copy of the first one."""
        return Visit(self.session.loaded, self._lock, self._parse, self._encoder)

    # --- look ---

    @property
    def has_image(self) -> bool:
        """Whether there is an image or a video to look at."""
        return self.session.has_image

    def open(self, path: str | None) -> None:
        """Look at an uploaded file from now on; at nothing if there is none. The file that is open stays as it is."""
        if path is not None and path == self._path:
            return
        self._path = None
        self._choice, self._picked, self._answer = None, [], None
        if path is None:
            self.session.close()
        else:
            self.session.open(path)
            self._path = path

    def select(self, asked: Asked) -> Look:
        """Choose tokens, and show them."""
        self._choice = None
        self._choice = self.session.select(asked.question, self._method(asked))
        self._asked, self._answer = asked, None
        self._picked = [token for token in self._picked if token < self._record.before]
        return self.look(self._overlay)

    def look(self, overlay: str = "kept", step: int | None = None) -> Look:
        """What was chosen, again: by another map, or only the first choices."""
        if self._choice is None:
            return Look(EMPTY, "", "kept", ["kept"], 0, 0)
        record = self._record
        self.overlays = overlays = available_overlays(record)
        self._overlay = shown = overlay if overlay in overlays else "kept"
        choices = len(record.choices)
        canvas = draw_canvas(self._choice.background, record, shown, step if step != choices else None, self._picked)
        sentence = f"{describe_counts([record]).capitalize()} Chosen in {1000 * self._choice.seconds:,.0f} ms."
        return Look(canvas, sentence, shown, overlays, choices, record.before)

    def pick(self, token: int) -> str:
        """Pick a token of the picture, the last two at most; returns what they have in common."""
        self._checked_choice()
        self._picked = [*self._picked, token][-2:]
        return self.pair()

    def pair(self) -> str:
        """What the picked tokens have in common, if there are two."""
        if len(self._picked) < 2 or self._asked is None:
            return pair_html(None)
        script = explained_script(self._method(self._asked), self._record.after)
        tau = 0.3 if isinstance(script.tau, str) else script.tau
        first, second = self._picked
        return pair_html(self.session.pair(self._asked.question, first, second, tau=tau, graph=script.graph))

    def explain(self) -> str:
        """Script's five steps, with the numbers of the token that was picked last, or else of the first kept one."""
        choice, asked = self._checked_choice()
        method = self._method(asked)
        script = explained_script(method, choice.record.after)
        steps = compute_steps(*self.session.tokens(asked.question), script)
        token = self._picked[-1] if self._picked else steps.kept[0]
        return steps_html(describe_steps(steps, token), token, None if type(method) is type(script) else method.name)

    # --- ask and compare ---

    def ask(self, asked: Asked) -> Iterator[tuple[str, str]]:
        """Answers with all tokens and with the kept ones as they are written, then what both cost."""
        method = self._method(asked)
        results: list[MethodResult] = []
        for name, one in ((ALL_TOKENS, None), (asked.method, method)):
            for result in self.session.answer(asked.question, one, name):
                yield answers_html([*results, result], done=False), ""
            results.append(result)
        self._answer = results[-1].answer
        yield answers_html(results, done=True), cost_html(results, self.session.vision_seconds)

    def compare(self, asked: Asked, names: Sequence[str]) -> Iterator[str]:
        """Several methods at one budget: answers, costs, and how far they keep the same."""
        least, most = COMPARED
        if not least <= len(names) <= most:
            raise UserError(f"--methods names {len(names)}: compare {least} to {most} of them.")
        methods = {name: self._method(asked._replace(method=name)) for name in names}
        results: list[MethodResult] = []
        for name, method in {ALL_TOKENS: None, **methods}.items():
            for result in self.session.answer(asked.question, method, name):
                yield answers_html([*results, result], done=False)
            results.append(result)
        kept = {one.name: set(one.record.kept.tolist()) for one in results[1:] if one.records}
        yield compare_html(results, kept, self.session.vision_seconds)

    # --- take away ---

    def code(self) -> tuple[str, str]:
        """Python code and a command line that do the same as the page."""
        _, asked = self._checked_choice()
        name, method = self.session.loaded.name, self._method(asked)
        video = self.session.is_video
        shown = "video.mp4" if video else "image.png"
        templated = bool(getattr(self.session.loaded.processor, "chat_template", None))
        short = templated and not video and name != "photo"  # which only `load_model` knows by its name
        if short:
            device = input_device(self.session.loaded.model).type
            code = python_code(name, shown, asked.question, method, encoder=self._encoder, device=device)
        else:
            code = long_python_code(name, shown, asked.question, method, encoder=self._encoder)
        return code, command_line(name, shown, asked.question, asked.method, asked.budget, encoder=self._encoder)

    def files(self, folder: Path) -> list[Path]:
        """Write the image, the picture and the record into a folder."""
        choice, asked = self._checked_choice()
        name, method = self.session.loaded.name, self._method(asked)
        told = record_json(name, asked.question, method, choice.record, self._answer)
        record = choice.record
        title = picture_title(
            asked.question, self._answer, f"{asked.method}, {record.after:,} of {record.before:,} tokens"
        )
        return write_files(folder, self.session.shown, choice.background, record, title, told)

    # --- what the page says ---

    @property
    def _record(self) -> Record:
        return self._checked_choice()[0].record

    def _checked_choice(self) -> tuple[Choice, Asked]:
        """What was chosen last, and for what; `UserError` where nothing was."""
        if self._choice is None or self._asked is None:
            self.session.shown  # noqa: B018 says that there is no image
            raise UserError("nothing is chosen yet: ask a question about the image.")
        return self._choice, self._asked

    def _method(self, asked: Asked) -> Method:
        return self._parse(asked.method, asked.budget)

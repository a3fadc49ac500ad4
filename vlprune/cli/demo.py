"""`vlprune demo`: a picture and a model that come with vlprune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vlprune.cli.files import check_picture_path, write_picture
from vlprune.cli.options import AsJson, Device, Force, Keep, MethodName, Wide, format_keep, parse_method
from vlprune.cli.terminal import console, show_steps
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load_model

#: Why these: see `vlprune.evaluation.demo_scenes`, which takes a second to load.
DEMO_SCENE, PHOTO_SCENE = 18, 2


def demo(
    scene: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Which picture to ask about: a photograph with cards on it, or a scene of the pocket model's test "
            f"split; if not said {PHOTO_SCENE} or {DEMO_SCENE}, the middle one of the first 21 by how well relevance "
            "finds what is asked about.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="photo or pocket; if not said photo, which a checkout has, or else pocket."),
    ] = None,
    method: MethodName = "script",
    keep: Keep = None,
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("vlprune-demo.png"),
    force: Force = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each question is timed; the medians count.")] = 1,
    device: Device = "auto",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """See it at work on a small model that comes with vlprune.

    Asks about a picture with all tokens and with few, prints answers and costs, and writes a picture of what was kept,
    and why.
    """
    name, folder = _choose_model(model)
    target = check_picture_path(out, name, force=force)
    with show_steps(f"loading {name}, a small model that comes with vlprune", quiet=as_json) as steps:
        import torch

        from vlprune.evaluation.demo import run_demo
        from vlprune.evaluation.demo_scenes import drawn_scene, photo_scene

        torch.set_num_threads(1)  # two took ten times as long where other programs kept the cores busy

        chosen = parse_method(method, keep)
        loaded = load_model(name, None, device)
        if folder is None:
            asked = drawn_scene(DEMO_SCENE if scene is None else scene)
        else:
            asked = photo_scene(PHOTO_SCENE if scene is None else scene, folder / "pictures")
        result = run_demo(loaded, chosen, asked, repeats, tick=steps.begin)
        steps.begin("drawing")
        write_picture(target, **result.picture())
    if as_json:
        found = {"model": name, "scene": result.scene.name, "method": method, "keep": format_keep(chosen)}
        print(json.dumps({**found, "questions": [answer.to_json() for answer in result.answers]}, indent=2))
        return
    from vlprune.cli.tables import answer_table, cost_table, median_costs

    questions = [(answer.question.text, answer.question.answer) for answer in result.answers]
    costs = [answer.costs for answer in result.answers]
    visual, kept = (cost.visual_tokens for cost in costs[0])
    titles = (f"all {visual}", f"{kept} of {visual}")
    console().print(answer_table(questions, [answer.answers for answer in result.answers], titles))
    medians = [(title, median_costs([pair[i] for pair in costs])) for i, title in enumerate(titles)]
    console().print(cost_table(medians, wide=wide))
    print(f"wrote {target}")


def _choose_model(model: str | None) -> tuple[str, Path | None]:
    """The name of the model to ask, and the photo model's folder if it is that one."""
    from vlprune.pocket.photo_folder import find_folder

    if model not in (None, "photo", "pocket"):
        raise UserError(f"--model {model}: the demo has pictures for 'photo' and 'pocket'; `vlprune ask` takes others.")
    folder = None if model == "pocket" else find_folder()
    if folder is None and model == "photo":
        raise UserError("--model photo: there are no weights in models/photo beside the package.")
    return ("pocket" if folder is None else "photo"), folder

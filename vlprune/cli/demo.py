"""`vlprune demo`: a drawn scene and the model that comes with vlprune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vlprune.cli.files import check_picture_path, write_picture
from vlprune.cli.options import AsJson, Device, Force, Keep, MethodName, Wide, format_keep, parse_method
from vlprune.cli.terminal import console, show_steps
from vlprune.evaluation.load_model import load_model


def demo(
    scene: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Which scene of the test split to draw; if not said 18, which is the middle one of the first 21 by "
            "how well relevance finds what is asked about.",
        ),
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
    """See it at work on the model that comes with vlprune.

    Draws a scene, asks about it with all tokens and with few, prints answers and costs, and writes a picture of what
    was kept, and why.
    """
    target = check_picture_path(out, force=force)
    with show_steps("loading pocket, the small model that comes with vlprune", quiet=as_json) as steps:
        import torch

        from vlprune.evaluation.demo import DEMO_SCENE, run_demo

        torch.set_num_threads(1)  # two took ten times as long where other programs kept the cores busy

        chosen = parse_method(method, keep)
        loaded = load_model("pocket", None, device)
        result = run_demo(loaded, chosen, DEMO_SCENE if scene is None else scene, repeats, tick=steps.begin)
        steps.begin("drawing")
        write_picture(target, **result.picture())
    if as_json:
        found = {"scene": result.scene.name, "method": method, "keep": format_keep(chosen)}
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

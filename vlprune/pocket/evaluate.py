"""How well the pocket model answers under a budget: `python -m vlprune.pocket.evaluate --keep 192,64,16`.

Every question of a split is asked through `attach` and `generate`, as a user would; the answer counts when it is the
right word. Compare methods on "validation", and report on "test".
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from vlprune.methods import DppOnly, Method, Random, Script
from vlprune.pocket.world import KINDS, benchmark

WHOLE = "all tokens"


@dataclass(frozen=True)
class Score:
    """Right answers and questions, per kind."""

    right: dict[str, int]
    asked: dict[str, int]

    def percent(self, kind: str | None = None) -> float:
        """Percent right of one kind, or the mean over the kinds."""
        kinds = [kind] if kind else list(self.asked)
        return 100 * sum(self.right[k] / self.asked[k] for k in kinds) / len(kinds)

    def margin(self) -> float:
        """Half the width of the mean's 95 % interval, in percent."""
        shares = [(self.right[k] / self.asked[k], self.asked[k]) for k in self.asked]
        return 196 * math.sqrt(sum(p * (1 - p) / n for p, n in shares)) / len(shares)


class Exam:
    """The questions of a split, drawn, tokenised and ready to be asked again and again.

    >>> from vlprune import pocket
    >>> exam = Exam("test", per_kind=1, loaded=pocket.load())
    >>> exam.take(None).percent() > 50
    True
    """

    def __init__(self, split: str, per_kind: int, loaded: tuple[Any, Any, Any], batch: int = 32) -> None:
        from vlprune.pocket.render import images

        self.model, self.processor, self.clip = loaded
        rows = []
        for scene, found in benchmark(split, per_kind):
            (picture,) = images([scene])
            rows += [(picture, question) for question in found]
        self._batches = []
        for start in range(0, len(rows), batch):
            pictures, questions = zip(*rows[start : start + batch])
            prompts = [_prompt(self.processor, question.text) for question in questions]
            inputs = self.processor(images=list(pictures), text=prompts, padding=True, return_tensors="pt")
            inputs = dict(inputs.to(self.model.device))
            if "mm_encoder_outputs" in signature(self.model.forward).parameters:  # not before transformers 5.22
                names = [id(picture) for picture in pictures]
                seen = self._see(inputs.pop("pixel_values"), [names.index(name) for name in names])
                inputs["mm_encoder_outputs"] = {"image": seen}
            self._batches.append((inputs, questions))

    def _see(self, pixels: Any, first: list[int]) -> Any:
        """The tower's output for images of which some come several times; `first` says where each came first."""
        import torch

        distinct = sorted(set(first))
        with torch.inference_mode():
            seen = self.model.get_image_features(pixel_values=pixels[distinct])
        again = [distinct.index(i) for i in first]
        seen.pooler_output = [seen.pooler_output[i] for i in again]
        seen.hidden_states = (seen.hidden_states[-2][again], None)  # LLaVA's layer, which stays the last but one
        seen.last_hidden_state = None
        return seen

    def take(self, method: Method | None, **options: Any) -> Score:
        """Ask everything with a method, or with all tokens (None); `options` go to `attach`."""
        import torch

        from vlprune.pruner import attach

        right, asked = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
        for i, (inputs, questions) in enumerate(self._batches):
            attached: Any = nullcontext()
            if isinstance(method, Random):  # it draws the same tokens of every image, so draw anew for every batch
                method = replace(method, seed=i)
            if method is not None:
                usual: dict[str, Any] = {"dual_encoder": (self.clip, self.processor.tokenizer), "cache_bytes": 0}
                usual |= {"processor": self.processor, "query": [question.text for question in questions]}
                attached = attach(self.model, method, **(usual | options))
            with attached, torch.inference_mode():
                out = self.model.generate(**inputs, max_new_tokens=1, do_sample=False)
            new = out[:, inputs["input_ids"].shape[1] :]
            for word, question in zip(self.processor.batch_decode(new, skip_special_tokens=True), questions):
                asked[question.kind] += 1
                right[question.kind] += word.strip() == question.answer
        return Score(right, asked)


def _prompt(processor: Any, text: str) -> str:
    content = [{"type": "image"}, {"type": "text", "text": text}]
    return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)


def methods_at(keep: int) -> dict[str, Method]:
    """The methods that the model card compares: two plain references, and Script by each fusion rule."""
    return {
        "random": Random(keep=keep),
        "dpp_only": DppOnly(keep=keep),
        "script": Script(keep=keep),
        "script-filter": Script(keep=keep, fusion="filter"),
        "script-released": Script(keep=keep, fusion="released"),
    }


def table(exam: Exam, budgets: Iterable[int], names: Sequence[str]) -> list[tuple[str, int, Score]]:
    """Scores of the whole model, then of every method at every budget, shown as they come."""
    from rich.console import Console

    console = Console(width=110)
    rows: list[tuple[str, int, Score]] = []
    runs: list[tuple[str, int, Method | None]] = [(WHOLE, 576, None)]
    runs += [(name, keep, methods_at(keep)[name]) for keep in budgets for name in names]
    console.print("method            tokens  " + "".join(f"{kind:>7}" for kind in KINDS) + "     mean")
    for name, keep, method in runs:
        score = exam.take(method)
        rows.append((name, keep, score))
        cells = "".join(f"{score.percent(kind):7.1f}" for kind in KINDS)
        console.print(f"{name:<18}{keep:>6}  {cells}  {score.percent():7.1f} ± {score.margin():.1f}", highlight=False)
    return rows


def plot(rows: Sequence[tuple[str, int, Score]], file: str) -> None:
    """Draw accuracy against budget, one line a method, the whole model as a dashed line; bars are 95 % intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for method in dict.fromkeys(name for name, _, _ in rows):
        points = [(keep, score.percent(), score.margin()) for name, keep, score in rows if name == method]
        if method == WHOLE:
            axes.axhline(points[0][1], color="grey", linestyle="--", label=f"all {points[0][0]} tokens")
        else:
            budget, mean, margin = zip(*sorted(points))
            axes.errorbar(budget, mean, margin, marker="o", capsize=3, label=method)
    budgets = sorted({keep for name, keep, _ in rows if name != WHOLE})
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [str(keep) for keep in budgets])
    axes.set(xlabel="visual tokens kept, of 576", ylabel="right answers, % (mean of six kinds)")
    axes.legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    from vlprune import pocket

    parser = argparse.ArgumentParser(
        prog="python -m vlprune.pocket.evaluate", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    parser.add_argument("--per-kind", type=int, default=600, help="questions of each kind")
    parser.add_argument("--keep", default="192,128,64,32,16", help="budgets, with commas")
    parser.add_argument("--methods", default=",".join(methods_at(1)), help="with commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=32, help="questions asked at once")
    parser.add_argument("--json", help="write the counts there")
    parser.add_argument("--plot", help="draw accuracy against budget there")
    args = parser.parse_args()
    model, processor, clip = pocket.load()
    exam = Exam(args.split, args.per_kind, (model.to(args.device), processor, clip.to(args.device)), args.batch)
    rows = table(exam, [int(k) for k in args.keep.split(",")], args.methods.split(","))
    if args.plot:
        plot(rows, args.plot)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(
                [{"method": n, "keep": k, "right": s.right, "asked": s.asked} for n, k, s in rows],
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()

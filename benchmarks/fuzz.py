"""Odd and hostile input, drawn at random: selections, layouts, images, videos, prompts and checkpoints.

    python benchmarks/fuzz.py selections --cases 1000000   # against float64, in numpy
    python benchmarks/fuzz.py layouts --cases 100000       # against lists that are shortened one token at a time
    python benchmarks/fuzz.py images --cases 10000         # an RGB image, or one sentence
    python benchmarks/fuzz.py videos --cases 500
    python benchmarks/fuzz.py prompts --cases 10000        # an answer, or one sentence
    python benchmarks/fuzz.py configs --cases 1000         # `vlprune ask`: exit code 0, or 2 and one sentence

Case i of a campaign is drawn from (--seed, i) alone, so that it can be made again by itself: --first i --cases 1. A
campaign stops after --cases or after --seconds, and goes on from where it stopped if --state names a folder; --jobs 8
shares the cases between eight processes. What went wrong is printed with its number, and the exit code is 1.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_cases.configs import make_config_case
from fuzz_cases.expectations import Case, Wrong
from fuzz_cases.layouts import layout_case
from fuzz_cases.media import image_case, video_case
from fuzz_cases.prompts import make_prompt_case
from fuzz_cases.selections import selection_case

CAMPAIGNS: dict[str, Callable[[], Case]] = {
    "selections": lambda: selection_case,
    "layouts": lambda: layout_case,
    "images": lambda: image_case,
    "videos": lambda: video_case,
    "prompts": make_prompt_case,
    "configs": make_config_case,
}


def run(name: str, cases: int, seed: int = 0, first: int = 0, seconds: float = float("inf"), tell: Any = None) -> Any:
    """Run the cases from `first` on; returns (how many of each kind, what went wrong by number, the next number)."""
    case, kinds, wrong = CAMPAIGNS[name](), Counter(), {}
    end, number = time.time() + seconds, first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while number < first + cases and time.time() < end:
            try:
                kinds[case(random.Random(f"{seed} {name} {number}"))] += 1
            except Wrong as error:
                wrong[number] = str(error)
            except Exception as error:
                wrong[number] = f"{type(error).__name__}: {error}"
            number += 1
            if tell is not None and (number % 100 == 0 or number - 1 in wrong):
                tell(number, wrong.get(number - 1), kinds)
    return kinds, wrong, number


def run_share(given: Any, first: int, cases: int, file: Path) -> None:
    """Run so many cases from `first` on, or from where `file` says that an earlier run came to."""
    kept = json.loads(file.read_text()) if file.is_file() else {"next": first, "wrong": {}, "kinds": {}, "memory": 0}
    before = Counter(kept["kinds"])

    def tell(number: int, what: str | None, kinds: Counter[str]) -> None:
        if what is not None:
            kept["wrong"][str(number - 1)] = what
            print(f"case {number - 1}: {what}", flush=True)
        kept["next"], kept["kinds"] = number, before + kinds
        kept["memory"] = max(kept["memory"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        _write(file, kept)

    left = first + cases - kept["next"]
    kinds, _, number = run(given.campaign, max(0, left), given.seed, kept["next"], given.seconds, tell)
    tell(number, None, kinds)


def _write(file: Path, content: Any) -> None:
    half = file.with_name(f".{file.name}.part")
    half.write_text(json.dumps(content))
    os.replace(half, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", choices=sorted(CAMPAIGNS))
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    parser.add_argument("--state", type=Path, help="a folder that keeps how far it came")
    parser.add_argument("--share", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.share is not None:
        run_share(given, given.first, given.cases, given.share)
        return
    with tempfile.TemporaryDirectory() as place:
        folder, begun = given.state or Path(place), time.time()
        folder.mkdir(parents=True, exist_ok=True)
        marks = [given.first + given.cases * i // given.jobs for i in range(given.jobs + 1)]
        files = [folder / f"{given.campaign}-{given.seed}-{a}-{b}.json" for a, b in pairwise(marks)]
        if given.jobs == 1:
            run_share(given, given.first, given.cases, files[0])
        else:
            words = [sys.executable, __file__, given.campaign, "--seed", given.seed, "--seconds", given.seconds]
            shares = [("--first", a, "--cases", b - a) for a, b in pairwise(marks)]
            children = [
                subprocess.Popen([*map(str, [*words, *share, "--share", file])]) for share, file in zip(shares, files)
            ]
            for child in children:
                child.wait()
        kept = [json.loads(file.read_text()) for file in files]
    done = sum(share["next"] - mark for share, mark in zip(kept, marks))
    wrong, kinds = (
        sum(len(share["wrong"]) for share in kept),
        sum((Counter(share["kinds"]) for share in kept), Counter()),
    )
    for kind, count in sorted(kinds.items()):
        print(f"  {kind}: {count:,}")
    print(
        f"{given.campaign}: {done:,} cases from {given.first:,} on (seed {given.seed}), {wrong} wrong, "
        f"{time.time() - begun:.0f} s by {given.jobs} processes, at most {max(s['memory'] for s in kept):.2f} GiB each"
    )
    lost = done < given.cases and given.seconds == float("inf")  # a process has died
    raise SystemExit(1 if wrong or lost else 0)


if __name__ == "__main__":
    main()

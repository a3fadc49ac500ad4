"""How long the studio takes to choose again when the budget is moved: with the pocket model, on this machine's CPU.

`python benchmarks/studio.py` prints medians and the slowest in milliseconds, of choosing alone and of the whole answer
of the page, picture included, with all of torch's threads and with one; the machine's load; how often the tower ran.
"""

import os
import threading
import time
from statistics import median

import torch

from vlprune import pocket
from vlprune.cli.options import parse_method
from vlprune.evaluation.load_model import load_model
from vlprune.studio.visit import Asked, Visit

REPEATS = 21


def main() -> None:
    """Time budgets one after another, as a moved slider asks for them."""
    loaded = load_model("pocket", None, "cpu")
    runs: list[int] = []
    loaded.model.model.vision_tower.register_forward_hook(lambda *_: runs.append(1))
    (scene,) = pocket.scenes("test", 1, start=18)
    visit = Visit(loaded, threading.Lock(), parse_method)
    visit.session.show(pocket.images([scene])[0])
    question = pocket.questions(scene)[0].text
    visit.select(Asked(question, "script", 64))
    for threads in dict.fromkeys((torch.get_num_threads(), 1)):
        torch.set_num_threads(threads)
        for keep in (16, 64, 256):
            whole, choosing = [], []
            for _ in range(REPEATS):
                began = time.perf_counter()
                look = visit.select(Asked(question, "script", keep))
                whole.append(1000 * (time.perf_counter() - began))
                choosing.append(float(look.sentence.split("Chosen in ")[1].split()[0].replace(",", "")))
            print(
                f"threads {threads}, tokens {keep:3}: "
                f"choosing {median(choosing):.0f} ms (slowest {max(choosing):.0f}), "
                f"the page's answer {median(whole):.0f} ms (slowest {max(whole):.0f})"
            )
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"the vision tower ran {len(runs)} time{'s' * (len(runs) != 1)}")


if __name__ == "__main__":
    main()

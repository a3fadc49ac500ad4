"""What only a GPU can show, in one call: are tests, threads and long runs right there, and how fast is it?

    python benchmarks/on_gpu.py right --logs runs/gpu --minutes 10   # tests, threads and long runs, all at once
    python benchmarks/on_gpu.py rest --logs runs/gpu --minutes 10    # the other tests
    python benchmarks/on_gpu.py fast --logs runs/gpu --minutes 30    # times, one after the other, with nothing beside
    python benchmarks/on_gpu.py fast --steps selection budgets-next  # some of them

Each step is a command of its own (`--list` prints them) and writes a log of its own as it goes, so that nothing is lost
where the machine is. At the end comes a line a step, with the last lines of its log; what is not done by `--minutes` is
ended and says so. The exit code is that of the worst step.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = "tests/cuda_graphs tests/methods tests/selection tests/pruning tests/vision tests/measure"
SOAK = "benchmarks/soak.py --device cuda"
BUDGETS = "benchmarks/first_token.py --ways eager --repeats 5 --keep 0.05 0.1 0.2 0.3 0.4 0.5 --models"
FIRST = "benchmarks/first_token.py --ways graphs towers eager --models"
BATCHES = "benchmarks/throughput.py --rounds 1 --batches 32 --limits --new 8 --models"
LIMITS = "benchmarks/throughput.py --rounds 1 --batches --new 4 --models"

#: What is right: the steps whose failure was never understood come first. All run at once.
RIGHT = {
    "captures": "-m pytest -p no:cacheprovider tests/cuda_graphs/test_captures_in_threads.py",
    "threads": f"{SOAK} --calls 2000 --threads 8",
    "threads-graphs": f"{SOAK} --calls 2000 --threads 8 --cuda-graphs",
    "soak": f"{SOAK} --cuda-graphs --seconds 300 --calls 1000000",
    "soak-plain": f"{SOAK} --cuda-graphs --seconds 300 --calls 1000000 --plain",
    "repeats": f"{SOAK} --repeats 1000",
    "tests": f"-m pytest -p no:cacheprovider -n 5 --dist loadfile {ROOMS}",
    "races": "-m pytest -p no:cacheprovider tests/selection/fused_cases.py",
}
#: The tests that no other step runs: they need no GPU, and find one where they would use it.
REST = {
    "other-tests": "-m pytest -p no:cacheprovider -v -n 14 --dist loadfile tests --ignore tests/integrations "
    + " ".join(f"--ignore {room}" for room in ROOMS.split()),
}
#: How fast: one after the other, the shortest first.
FAST = {
    "selection": "benchmarks/selection.py --repeats 15",
    "more-than-channels": "benchmarks/more_than_channels.py",
    "tower": "benchmarks/tower.py --towers siglip-so400m-384 clip-l-336 --images 1 8 64 --merge 0.25 0.5 0.75 "
    "--repeats 9",
    "budgets-llava": f"{BUDGETS} llava-1.5-7b --ways eager towers graphs --repeats 2 --rounds 5",  # its host is uneven
    "budgets-next": f"{BUDGETS} llava-next-7b",
    "budgets-internvl": f"{BUDGETS} internvl3-8b",
    "budgets-qwen": f"{BUDGETS} qwen2.5-vl-7b --rounds 2",
    "budgets-onevision": f"{BUDGETS} llava-onevision-7b --rounds 2",
    "budgets-video": f"{BUDGETS} llava-video-7b --rounds 2",
    "first-llava": f"{FIRST} llava-1.5-7b",
    "first-next": f"{FIRST} llava-next-7b",
    "first-video": f"{FIRST} llava-video-7b --rounds 2",
    "first-internvl": f"{FIRST} internvl3-8b --repeats 5",
    "first-qwen": f"{FIRST} qwen2.5-vl-7b --repeats 4 --rounds 2",
    "decode-next": "benchmarks/throughput.py --decode --models llava-next-7b --rounds 1 --repeats 2",
    "decode-video": "benchmarks/throughput.py --decode --models llava-video-7b --rounds 1 --repeats 3",
    "prefill": "benchmarks/prefill.py --repeats 6",
    "paper": "-m vlprune bench --paper llava-next-7b --repeats 5 --new 9",
    "paper-graphs": "-m vlprune bench --paper llava-next-7b --repeats 5 --new 9 --cuda-graphs",
    "batch-llava": f"{BATCHES} llava-1.5-7b",
    "batch-next": f"{BATCHES} llava-next-7b",
    "batch-qwen": f"{BATCHES} qwen2.5-vl-7b",
    "batch-internvl": f"{BATCHES} internvl3-8b",
    "limits-llava": f"{LIMITS} llava-1.5-7b",
    "limits-next": f"{LIMITS} llava-next-7b",
    "limits-qwen": f"{LIMITS} qwen2.5-vl-7b",
    "limits-internvl": f"{LIMITS} internvl3-8b",
    "growth": "benchmarks/selection.py --growth {logs}/selection-growth.json --repeats 3",
    "prefill-growth": "benchmarks/growth.py {logs}/prefill-growth.json",
}
GROUPS = {"right": RIGHT, "rest": REST, "fast": FAST}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # without it no computed batch fits
ENVIRONMENT = {"races": {"VLPRUNE_RACES": "200"}, **{name: EXPANDABLE for name in FAST if name.startswith("limits")}}
SHOWN = 12  #: lines of each log at the end


class Step:
    """A command that runs in a process group of its own and writes to a log."""

    def __init__(self, name: str, words: str, logs: Path) -> None:
        self.name, self.log, self.seconds, self.status = name, logs / f"{name}.log", 0.0, "not begun"
        self._words = [sys.executable, *shlex.split(words.format(logs=logs))]
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start the command."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # a checkout, installed or not
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **ENVIRONMENT.get(self.name, {})}
        self._began, self.status = time.monotonic(), "running"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def has_ended(self) -> bool:
        """Whether the command is done."""
        if self._process is None or self._process.poll() is None:
            return False
        if self.status == "running":
            self.seconds, code = time.monotonic() - self._began, self._process.returncode
            self.status = "right" if code == 0 else f"exit {code}"
        return True

    def stop(self) -> None:
        """End the command and what it has started, if it still runs."""
        if self._process is not None and not self.has_ended():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.seconds, self.status = time.monotonic() - self._began, "out of time"

    def told(self) -> str:
        """The step in a line, and the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"== {self.name}: {self.status}, {self.seconds:.0f} s", *lines[-SHOWN:]])


def run(steps: list[Step], deadline: float, at_once: bool) -> None:
    """Run the steps, all at once or one after the other, until they are done or it is `deadline`."""
    waiting, running = list(steps), []
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and (at_once or not running):
                running.append(waiting.pop(0))
                running[-1].begin()
                print(f"{running[-1].name} begins", flush=True)
            for step in [step for step in running if step.has_ended()]:
                running.remove(step)
                print(f"{step.name}: {step.status}, {step.seconds:.0f} s", flush=True)
            time.sleep(0.1)
    finally:
        for step in running:
            step.stop()


def main() -> int:
    """Run a group of steps and tell what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=list(GROUPS))
    parser.add_argument("--steps", nargs="+", help="some of the group's; all of them if not given")
    parser.add_argument("--logs", type=Path, default=Path("runs/gpu"), metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=60.0, help="then what still runs is ended")
    parser.add_argument("--list", action="store_true", help="print the commands and do nothing")
    arguments = parser.parse_args()
    commands = GROUPS[arguments.group]
    names = arguments.steps or list(commands)
    if unknown := [name for name in names if name not in commands]:
        parser.error(f"--steps {' '.join(unknown)}: the steps of {arguments.group} are {', '.join(commands)}.")
    if arguments.list:
        for name in names:
            print(f"{name:16} python {commands[name].format(logs=arguments.logs)}")
        return 0
    arguments.logs.mkdir(parents=True, exist_ok=True)
    steps = [Step(name, commands[name], arguments.logs.resolve()) for name in names]
    run(steps, time.monotonic() + 60 * arguments.minutes, at_once=arguments.group == "right")
    print("\n".join(step.told() for step in steps))
    return int(any(step.status != "right" for step in steps))


if __name__ == "__main__":
    sys.exit(main())

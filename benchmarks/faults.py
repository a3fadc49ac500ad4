"""Faults on purpose: errors at every step of a call, and runs that are killed at random moments and started again.

    python benchmarks/faults.py steps                        # Ctrl-C and out of memory at every step of our own code
    python benchmarks/faults.py kill --kills 200             # SIGKILL
    python benchmarks/faults.py kill --kills 50 --signal INT # Ctrl-C: exit code 130 and one line
    python benchmarks/faults.py kill --commands reproduce    # in an environment with lmms-eval
    python benchmarks/faults.py kill --jobs 8                # shared between eight processes

`steps` attaches a pruner to the pocket model and raises an error where the n-th function of vlprune is entered, for
every n of a `generate` and of a direct call; after each, the same call must give what it gave before. `kill` runs
`vlprune eval`, `vlprune study` and, if it is named (with lmms-eval installed), `vlprune reproduce` in child processes
and ends them, half of the time after a random time, and half where they touch a file of the run's folder for the n-th
time; each folder is then gone on with until it is whole. Its answers must be those of a run that nobody disturbed,
each once, and every file that has a whole file's name must be whole. Both print what they did, and exit with 1 if
anything differed.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vlprune

os.environ["OMP_NUM_THREADS"] = "1"  # before torch reads it
PACKAGE = str(Path(vlprune.__file__).parent)


# --- errors at every step ---


def is_step(frame: Any) -> bool:
    """Whether a frame is a function of vlprune.

    In generator expressions, which end unseen, errors are lost. Python 3.10 leaves out the `finally` of a generator in
    which a profiler raises an error as it goes on, which no Ctrl-C does.
    """
    goes_on = sys.version_info < (3, 11) and frame.f_lasti >= 0
    return frame.f_code.co_filename.startswith(PACKAGE) and frame.f_code.co_name != "<genexpr>" and not goes_on


def count_steps(call: Callable[[], Any]) -> int:
    """How many functions of vlprune a call enters."""
    seen = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal seen
        seen += event == "call" and is_step(frame)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def raised_at(step: int, error: type[BaseException], call: Callable[[], Any]) -> bool:
    """Whether `error`, raised where the call enters the step-th function of vlprune, ended the call."""
    left = step

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal left
        if event == "call" and is_step(frame):
            left -= 1
            if left == 0:
                raise error(f"step {step}")

    sys.setprofile(profile)
    try:
        call()
    except error:
        return True
    finally:
        sys.setprofile(None)
    return False


def steps_campaign(names: list[str], first: int, stride: int) -> Counter[str]:
    """Raise errors at every `stride`-th step of a generate and of a direct call; how many, and how many went wrong."""
    import torch

    from vlprune import FastV, Script, VisionZip, attach, pocket

    torch.set_num_threads(1)
    model, processor, clip = pocket.load()
    image = torch.randint(0, 256, (3, 192, 192), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    inputs = processor(images=image, text="USER: <image> is there a red star? ASSISTANT:", return_tensors="pt")
    calls: dict[str, Callable[[], Any]] = {
        "generate": lambda: model.generate(**inputs, max_new_tokens=2, do_sample=False),
        "forward": lambda: model(**inputs).logits,
    }
    counts: Counter[str] = Counter()
    methods = {method.name: method for method in (Script(keep=16), VisionZip(keep=16), FastV(keep=64))}
    for method in map(methods.__getitem__, names):
        encoder = clip if method.name == "script" else None
        for name, call in calls.items():
            for error in (KeyboardInterrupt, torch.OutOfMemoryError):
                with torch.no_grad():
                    plain = call()
                    with attach(model, method, processor=processor, dual_encoder=encoder, cache_bytes=0):
                        expected, total = call(), count_steps(call)
                        raised = differed = 0
                        for step in range(first, total + 1, stride):
                            raised += raised_at(step, error, call)
                            differed += not torch.equal(call(), expected)
                    differed += not torch.equal(call(), plain)
                steps = len(range(first, total + 1, stride))
                counts += Counter({f"steps, {method.name}": steps, f"errors, {method.name}": raised, "wrong": differed})
                if differed:
                    print(f"{method.name}, {name}, {error.__name__}: {differed} of {raised} errors wrong", flush=True)
    return counts


# --- runs that are killed ---

COMMANDS = {
    "eval": ["eval", "--questions", "2", "--methods", "script,random", "--keep", "64,16", "--batch", "4"],
    "study": ["study", "overlap", "--questions", "2", "--small", "--batch", "4"],
    "reproduce": ["reproduce", "llava-1.5-7b", "--model", "pocket", "--methods", "divprune", "--keep", "64"],
}


def words_of(name: str, place: Path) -> list[str]:
    """The words of a command; `reproduce` asks the tasks of its tests, whose data it finds in `place`."""
    if name != "reproduce":
        return COMMANDS[name]
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import lmms_eval.tasks  # noqa: F401  so that no child has to import it

    from tests.integrations.lmms_eval.local_tasks import write_tasks

    (place / "tasks").mkdir()
    folder = write_tasks(place / "tasks", official=True)
    return [*COMMANDS[name], "--tasks", "pope,gqa", "--device", "cpu", "--batch", "4", "--task-folder", str(folder)]


def import_all() -> None:
    """What the children need, so that they need not import it; nothing is computed, as torch's threads do not fork."""
    import transformers.models.auto.modeling_auto
    import transformers.models.llava.modeling_llava  # noqa: F401

    from vlprune import pocket  # noqa: F401
    from vlprune.cli import app, evaluate  # noqa: F401
    from vlprune.evaluation import accuracy, load_model, plots  # noqa: F401


def run_child(words: list[str], folder: Path, after: float | None, touches: int | None, end: int) -> tuple[int, str]:
    """Run the program in a child, which ends itself by the signal `end` after so many seconds, or touches of a file.

    Returns its wait status and what it wrote to the standard error.
    """
    said = folder.parent / "stderr"
    child = os.fork()
    if child:
        if after is not None:
            time.sleep(after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, end)
        return os.waitpid(child, 0)[1], said.read_text(errors="replace")
    code = 70
    try:
        quiet, errors = os.open(os.devnull, os.O_WRONLY), os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 1)
        os.dup2(errors, 2)
        if touches is not None:
            left = touches

            def watch(event: str, args: tuple[Any, ...]) -> None:
                nonlocal left
                if event in ("open", "os.rename", "os.mkdir", "os.remove") and str(args[0]).startswith(str(folder)):
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), end)

            sys.addaudithook(watch)
        from vlprune.cli.app import main

        main([*words, "--out", str(folder)])
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def answers_of(folder: Path) -> dict[str, list[str]]:
    """The lines of every file of answers, sorted."""
    return {path.name: sorted(path.read_text().splitlines()) for path in sorted((folder / "answers").glob("*.jsonl"))}


def first_difference(found: dict[str, list[str]], expected: dict[str, list[str]]) -> str:
    if found.keys() != expected.keys():
        return f"files {sorted(found)}, not {sorted(expected)}"
    for name, lines in expected.items():
        if found[name] != lines:
            more, less = sorted(set(found[name]) - set(lines)), sorted(set(lines) - set(found[name]))
            return f"{name} has {len(found[name])} lines, not {len(lines)}; more: {more[:1]}, missing: {less[:1]}"
    return "no result.json"


def broken_files(folder: Path) -> list[str]:
    """Files that have a whole file's name and are not whole; a last line that was cut off is not counted as one."""
    found = []
    for path in folder.rglob("*.json"):
        if not path.name.startswith("."):
            try:
                json.loads(path.read_text())
            except ValueError:
                found.append(path.name)
    for path in folder.rglob("*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            try:
                json.loads(line)
            except ValueError:
                found.append(path.name)
    return found


def kill_campaign(name: str, kills: int, end: int, seed: str, place: Path) -> Counter[str]:
    """Kill the runs of one command so many times; how many, and how many went wrong."""
    words, drawn = words_of(name, place), random.Random(seed)
    calm = place / "calm"
    begun = time.time()
    status, said = run_child(words, calm, None, None, end)
    if status != 0:
        raise SystemExit(f"{name} failed undisturbed: {said}")
    seconds, expected = time.time() - begun, answers_of(calm)
    total = sum(map(len, expected.values()))
    done = wrong = folders = at_files = 0
    while done < kills:
        folder, folders = place / f"run-{folders}", folders + 1
        while True:
            by_files = drawn.random() < 0.5
            last = done >= kills
            after = None if by_files or last else drawn.uniform(0, seconds)
            touches = drawn.randint(1, 30) if by_files and not last else None
            status, said = run_child(words, folder, after, touches, end)
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
                break
            done, at_files = done + 1, at_files + by_files
            broken = broken_files(folder) if folder.exists() else []
            expected_end = (
                os.WIFSIGNALED(status) and os.WTERMSIG(status) == end
                if end == signal.SIGKILL
                else os.WIFEXITED(status) and os.WEXITSTATUS(status) == 130 and "Traceback" not in said
            )
            if broken or not expected_end:
                wrong += 1
                print(f"{name}: status {status}, broken files {broken}, it said: {said[-600:]}", flush=True)
                if not expected_end or wrong > 5:
                    break
        found = answers_of(folder)
        if found != expected or not (folder / "result.json").is_file():
            wrong += 1
            print(f"{name}: not as an undisturbed run: {first_difference(found, expected)}", flush=True)
        else:
            shutil.rmtree(folder)
    counts = {f"kills, {name}": done, f"kills at a file, {name}": at_files, f"runs, {name}": folders, "wrong": wrong}
    print(f"{name}: {total} answers a run", flush=True)
    return Counter(counts)


def run_share(given: argparse.Namespace) -> Counter[str]:
    """The part of the campaign that is process `given.share`'s of `given.jobs`."""
    if given.campaign == "steps":
        return steps_campaign(given.methods, 1 + given.share * given.stride, given.stride * given.jobs)
    import_all()
    end = getattr(signal, f"SIG{given.signal}")
    kills = given.kills * (given.share + 1) // given.jobs - given.kills * given.share // given.jobs
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for name in given.commands:
            Path(place, name).mkdir()
            counts += kill_campaign(name, kills, end, f"{given.seed} {given.share}", Path(place, name))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", choices=["steps", "kill"])
    methods = ["script", "visionzip", "fastv"]
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods, help="whose steps")
    parser.add_argument("--stride", type=int, default=1, help="every so many steps")
    parser.add_argument("--kills", type=int, default=200, help="of each command")
    parser.add_argument("--signal", choices=["KILL", "INT"], default="KILL")
    parser.add_argument("--commands", nargs="+", choices=sorted(COMMANDS), default=["eval", "study"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.share is not None:
        print(json.dumps(run_share(given)))
        return
    begun, counts = time.time(), Counter[str]()
    shares = [[sys.executable, __file__, *sys.argv[1:], "--share", str(share)] for share in range(given.jobs)]
    children = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for words in shares]
    for child in children:
        said = child.communicate()[0].splitlines()
        print("\n".join(said[:-1]))
        if child.returncode != 0:
            for other in children:
                other.kill()
            raise SystemExit(f"a process ended with {child.returncode}")
        counts += Counter(json.loads(said[-1]))
    wrong = counts.pop("wrong", 0)
    print(", ".join(f"{count:,} {what}" for what, count in counts.items()))
    print(f"seed {given.seed}, {given.jobs} processes, {time.time() - begun:.0f} s, {wrong} wrong")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()

"""Checkpoints with fields missing or absurd: `vlprune ask` ends with 0, or with 2 and one sentence."""

import atexit
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fuzz_cases.expectations import Case, expect

ABSURD: list[Any] = [None, -1, 0, 1, 10**9, 2**70, 0.5, "x", "", [], {}, [1, 2], {"a": 1}, True, float("nan")]
FILES = ["config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json"]


def make_config_case() -> Case:
    import transformers.models.auto.modeling_auto
    import transformers.models.llava.modeling_llava  # noqa: F401  nothing is computed: torch's threads do not fork
    from PIL import Image

    from vlprune import pocket
    from vlprune.evaluation import one_question  # noqa: F401  so that no child has to import it

    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    photo = place / "photo.png"
    Image.fromarray(np.zeros((48, 48, 3), dtype=np.uint8)).save(photo)
    source = Path(pocket.path())
    files = {path.name: path for path in source.iterdir() if path.is_file()}

    def case(draw: random.Random) -> str:
        folder = place / "model"
        folder.mkdir()
        for name, path in files.items():
            (folder / name).symlink_to(path)
        target = folder / draw.choice([name for name in FILES if name in files])
        content = json.loads(target.read_text())
        target.unlink()
        kind = _spoil(draw, content)
        target.write_text(json.dumps(content))
        if draw.random() < 0.05:
            target.write_text(draw.choice(["", "{", "[]", "null", '"x"', "\x00", json.dumps(content)[:-9]]))
            kind = "no JSON"
        try:
            _ask(
                [
                    "ask",
                    str(photo),
                    "is there a red star?",
                    "--model",
                    str(folder),
                    "--keep",
                    "64",
                    "--max-new-tokens",
                    "1",
                ]
            )
        finally:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        return f"{target.name}, {kind}"

    return case


def _spoil(draw: random.Random, content: Any) -> str:
    """Leave a field out of a tree of JSON, or put something absurd in its place."""
    here = content
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return "unchanged"
        key = draw.choice(keys)
        deeper = isinstance(here[key], (dict, list)) and len(here[key]) > 0
        if deeper and draw.random() < 0.8:
            here = here[key]
            continue
        if draw.random() < 0.3:
            del here[key]
            return "missing"
        here[key] = draw.choice(ABSURD)
        return "absurd"


def _ask(words: list[str], seconds: int = 60, memory: int = 6 * 2**30) -> None:
    """Run the program in a child of bounded time and memory: it ends with 0, or with 2 and one sentence."""
    said = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}.txt"
    child = os.fork()
    if not child:
        code: Any = 70
        try:
            signal.alarm(10 * seconds)  # a child that waits for ever uses no processor
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            errors = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors, 2)
            from vlprune.cli.app import main

            try:
                main(words)
            except SystemExit as end:
                code = end.code
            except BaseException:
                import traceback

                traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 70)
    status = os.waitpid(child, 0)[1]
    text = said.read_text(errors="replace")
    said.unlink()
    expect(os.WIFEXITED(status), f"ended by signal {os.WTERMSIG(status)}: {text[-300:]}")
    code = os.WEXITSTATUS(status)
    expect(code in (0, 2) and "Traceback" not in text, f"exit code {code}: {text[-900:]}")
    if code == 2:
        lines = [line for line in text.splitlines() if line.startswith("vlprune: ") and not line.endswith("...")]
        expect(lines and lines[-1].rstrip().endswith((".", ".)")), f"no sentence: {text[-300:]}")

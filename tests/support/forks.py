"""Scripts in processes of their own that need not import torch and transformers: one process has, and forks."""

import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

#: What our scripts import; nothing is computed, as torch's threads do not fork.
IMPORTED = (
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.models.llava.modeling_llava",
    "vlprune.pocket",
    "vlprune.cli.app",
    "vlprune.cli.evaluate",
    "vlprune.cli.tables",
    "vlprune.evaluation.accuracy",
    "vlprune.evaluation.load_model",
    "vlprune.evaluation.one_question",
    "vlprune.evaluation.plots",
    "tests.support.families",
)


class Forks:
    """In the place of `subprocess`, for a script of Python and its words: each is a fork of one process."""

    PIPE = subprocess.PIPE

    def __enter__(self):
        ours = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "cwd": Path(__file__).parents[2], "text": True}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._server = subprocess.Popen([sys.executable, "-m", __name__], **ours, **pipes)
        return self

    def __exit__(self, *error):
        self._server.communicate()  # it ends when there are no more words

    def Popen(self, words, **ignored):  # noqa: N802  as subprocess names it
        """The script's process, which has ended already."""
        assert words[0] == sys.executable
        with tempfile.TemporaryDirectory() as folder:
            said = [Path(folder, name) for name in ("stdout", "stderr")]
            self._server.stdin.write(json.dumps([*map(str, words[1:]), *map(str, said)]) + "\n")
            self._server.stdin.flush()
            code = int(self._server.stdout.readline())
            out, errors = (path.read_text() for path in said)
        sys.stderr.write(errors)
        ended = {"wait": lambda: code, "communicate": lambda: (out, errors), "kill": lambda: None}
        return SimpleNamespace(returncode=code, stdout=out, stderr=errors, **ended)

    def run(self, words, **ignored):
        done = self.Popen(words)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done


def serve():
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            *sys.argv, out, errors = json.loads(line)
            for number, path in enumerate((os.devnull, out, errors)):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
            sys.path.insert(0, str(Path(sys.argv[0]).parent))
            runpy.run_path(sys.argv[0], run_name="__main__")
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()

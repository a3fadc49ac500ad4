"""The program `vlprune`. Only typer loads at the start: everything heavy loads inside the command that needs it."""

from __future__ import annotations

import errno
import io
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from vlprune.cli.ask import ask
from vlprune.cli.bench import bench
from vlprune.cli.compare import compare
from vlprune.cli.demo import demo
from vlprune.cli.evaluate import evaluate
from vlprune.cli.lists import methods, models
from vlprune.cli.report import report
from vlprune.cli.reproduce import reproduce
from vlprune.cli.scene import scene
from vlprune.cli.studio import studio
from vlprune.cli.study import study
from vlprune.errors import MethodError, UserError, is_out_of_memory

app = typer.Typer(
    name="vlprune",
    help="Drop the visual tokens that a question does not need, before the LLM pays for them.",
    epilog="Start with `vlprune demo`; then `vlprune scene` draws an image to ask about; photographs need "
    "--model photo or another.",
    add_completion=False,
    rich_markup_mode=None,  # rich takes longer to load than all the rest of --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (ask, compare, demo, scene, studio, methods, models, bench):
    app.command()(command)
app.command("eval")(evaluate)
app.command()(study)
app.command()(reproduce)
app.command()(report)

#: What keeps a file from being opened or written, that the user can put right.
FILE_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
}

# typer brings its own copy of click in newer versions, so click's errors are reached through typer's
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit: 0 for success, 2 with one sentence for what the user can put right.

    >>> main(["--version"])
    Traceback (most recent call last):
    ...
    SystemExit: 0
    """
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?", and does not fail
    printed: set[str] = set()

    def print_own(message: Warning | str, *where: Any, **more: Any) -> None:
        """Our own warnings, each once; those of libraries are for programmers."""
        if str(message).startswith("vlprune: ") and str(message) not in printed:
            printed.add(str(message))
            print(message, file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = print_own
            code = app(args=given, prog_name="vlprune", standalone_mode=False)
            sys.stdout.flush()
            if code == 130:  # so typer says that Ctrl-C was pressed
                raise KeyboardInterrupt
    except (UserError, MethodError) as error:
        sentence, code = str(error), 2
    except UsageError as error:
        sentence, code = explain_usage_error(error), 2
    except OSError as error:
        why = FILE_ERRORS.get(error.errno or 0)
        if why is None:
            raise
        verb = "opened" if error.errno in (errno.EACCES, errno.EPERM) else "written"
        sentence, code = f"{error.filename or 'the output'} cannot be {verb}: {why}.", 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        sentence, code = "there is not enough memory for this: a smaller image, batch or model needs less.", 2
    except (KeyboardInterrupt, typer.Abort):
        sentence, code = "stopped.", 130
    else:
        sys.exit(code if isinstance(code, int) else 0)
    print(f"vlprune: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)


def explain_usage_error(error: Any) -> str:
    """Click's message as a sentence, with the nearest name for an unknown option or command."""
    from difflib import get_close_matches

    message = str(error.format_message()) or "there is something missing; try --help."
    context = getattr(error, "ctx", None)
    unknown = re.match(r"No such (option|command):? '?([^\s']+)", message)
    if unknown is None or context is None:
        return message if message.endswith(".") else f"{message}."
    kind, name = unknown.groups()
    if kind == "option":
        known = [option for parameter in context.command.params for option in parameter.opts if option[:2] == "--"]
    else:
        known = list(context.command.commands)
    near = get_close_matches(name, known, n=1, cutoff=0.4)
    return f"no such {kind}: {name}; " + (f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}.")


def print_version(wanted: bool) -> None:
    """Print the version and end, if it is wanted."""
    if wanted:
        from vlprune.version import __version__

        print(f"vlprune {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...

"""What the documents say can be done: their code runs, their commands exist, their links lead somewhere.

README's code and commands run in `test_readme.py`, the examples of `docs/adding-a-*.md` in `tests/pruning/test_docs.py`.
"""

import re
import shlex
from pathlib import Path

import pytest
import typer

from vlprune.cli.app import app, main
from vlprune.models import list_families

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = typer.main.get_command(app)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def blocks(page, *languages):
    """The fenced blocks in these languages, each with the number of the line it begins on."""
    text = page.read_text(encoding="utf-8")
    found = [(text[: match.start(2)].count("\n"), *match.groups()) for match in FENCED.finditer(text)]
    return [(line, code) for line, language, code in found if language in languages]


def prose(page):
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def run(page, names):
    """Run all Python blocks of a page in one namespace; errors name the page and its line."""
    for line, code in blocks(page, "python"):
        exec(compile("\n" * line + code, str(page), "exec"), names)


def commands(page):
    """The shell commands of a page, in its blocks and between backticks, as lists of words."""
    lines = [line for _, code in blocks(page, "bash", "sh", "shell") for line in code.replace("\\\n", " ").splitlines()]
    yield from commands_in([*lines, *re.findall(r"`((?:vlprune|make) [^`]+)`", prose(page))])


def commands_in(lines):
    """The commands of lines of a shell, as lists of words."""
    for line in lines:
        command = []
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        for word in [*words, ";"]:
            if set(word) <= set("();<>|&"):
                if command:
                    yield command
                command = []
            elif command or not re.match(r"\w+=", word):  # settings of the environment come before a command
                command.append(word)


def wrong(command):
    """What the program does not know of a command, or None."""
    program, *words = command
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        return next((word for word in words if "=" not in word and word not in targets), None)
    if program != "vlprune":
        return None
    known, path = PROGRAM, "vlprune"
    if words and not words[0].startswith("-"):
        path = words.pop(0)
        if path not in PROGRAM.commands:
            return path
        known = PROGRAM.commands[path]
    options = {name for parameter in known.params for name in parameter.opts} | {"-h", "--help"}
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.split("=")[0] not in options]
    return unknown[0] if unknown else None


def test_the_method_as_described_runs():
    page = ROOT / "docs" / "method.md"
    assert len(blocks(page, "python")) >= 5
    names = {"__name__": "example"}
    run(page, names)
    assert names["chosen"].kept.shape == (1, 64)


@each_page
def test_python_is_python(page):
    for line, code in blocks(page, "python"):
        compile("\n" * line + code, str(page), "exec")


@each_page
def test_commands_exist(page):
    assert [(shlex.join(command), wrong(command)) for command in commands(page) if wrong(command)] == []


def test_commands_are_found():
    """That the test above sees what it should see, and knows what is not there."""
    found = list(commands(ROOT / "README.md"))
    for command in (["make", "demo"], ["vlprune", "models"], ["vlprune", "--help"]):
        assert command in found
    assert any(command[:2] == ["vlprune", "ask"] and "--show" in command for command in found)
    for line, word in {
        "vlprune ask a.png 'what is --this?' --keep=3 --json": None,
        "vlprune aks a.png": "aks",
        "vlprune demo --kep 3": "--kep",
        "vlprune --verbose": "--verbose",
        "make tea": "tea",
    }.items():
        assert wrong(shlex.split(line)) == word


@each_page
def test_links_lead_to_files(page):
    targets = [re.split(r"[\s#]", target)[0] for target in re.findall(r"\]\(([^)]+)\)", prose(page))]
    inside = [target for target in targets if target and not re.match(r"[a-z]+:", target)]
    assert [target for target in inside if not (page.parent / target).exists()] == []


def test_the_table_of_models(capsys):
    """docs/models.md has the table that `vlprune models` prints."""
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").replace("`", "")
    with pytest.raises(SystemExit):
        main(["models"])
    printed = capsys.readouterr().out
    for family in list_families():
        classes = ", ".join(family.classes) or "any other with image placeholders"
        positions = ", ".join(family.positions)
        cells = (family.name, classes, family.prunes, positions, family.relevance, family.tested)
        assert f"| {' | '.join(cells)} |" in text
        for cell in ("positions", family.name, *family.positions, *family.classes):
            assert cell in printed

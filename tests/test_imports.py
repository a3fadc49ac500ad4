"""The floors of the house: a file imports from its own room or from one below, never from one above, and in no circle.

Every import counts: those inside functions, those for type checkers, and modules loaded by their name.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vlprune"
#: From the ground up. Files that stand on one floor do not belong to a room, and may import each other.
FLOORS = (
    ("version", "types", "devices", "captured_graph", "errors", "budget", "record", "entry_points"),
    ("selection",),
    ("models",),
    ("media",),
    ("pocket",),
    ("methods",),
    ("pruning",),
    ("show",),
    ("cuda_graphs",),
    ("vision",),
    ("pruner",),
    ("measure",),
    ("evaluation",),
    ("studies",),
    ("integrations",),
    ("studio",),
    ("cli",),
    ("__init__", "__main__"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
#: Upward imports that are still there, as (file, imported module). It may only become shorter.
ALLOWED: set[tuple[str, str]] = set()
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file):
    """`vlprune/a/b.py` as "vlprune.a.b", a package by its own name."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


def room_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def imports(file):
    """The modules of the package that a file imports, wherever in it."""
    here = module_of(file).split(".")
    package = here if file.name == "__init__.py" else here[:-1]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in MODULES else base)
        elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
            found.update(arg.value for arg in node.args if isinstance(arg, ast.Constant))
    return {name for name in found if name in MODULES} - {module_of(file)}


def test_every_room_has_a_floor():
    rooms = {room_of(module) for module in MODULES}
    assert rooms <= set(FLOOR), "a new room: give it a floor in FLOORS"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_no_import_goes_up(file):
    own = room_of(module_of(file))
    upward = {
        (file.relative_to(PACKAGE).as_posix(), name) for name in imports(file) if FLOOR[room_of(name)] > FLOOR[own]
    }
    assert upward - ALLOWED == set()


def test_the_allow_list_is_no_longer_than_it_must_be():
    assert all(name in imports(PACKAGE / file) for file, name in ALLOWED)


def circles(arrows):
    """The groups of nodes that lead back to themselves, by following arrows until nothing changes."""
    reach = {node: set(targets) for node, targets in arrows.items()}
    while True:
        further = {node: known.union(*(reach[one] for one in known)) for node, known in reach.items()}
        if further == reach:
            break
        reach = further
    return sorted({tuple(sorted(other for other in reach[node] if node in reach[other])) for node in reach} - {()})


def test_no_circle_of_files():
    assert (
        circles({name: imports(file) for name, file in MODULES.items() if name != "vlprune"} | {"vlprune": set()}) == []
    )


def test_no_circle_of_rooms():
    rooms = {room_of(module): set() for module in MODULES}
    for name, file in MODULES.items():
        rooms[room_of(name)] |= {room_of(target) for target in imports(file)} - {room_of(name)}
    assert circles(rooms) == []


def private(name):
    return name.startswith("_") and not name.startswith("__")


def private_attributes(file):
    """(private attributes that the file's objects have of their own, those that it touches in others)."""
    own, others = set(), set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            own.update(item.name for item in node.body if isinstance(item, ast.FunctionDef))
        elif isinstance(node, ast.Attribute) and private(node.attr):
            mine = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (own if mine else others).add(node.attr)
    return own, others


def test_no_room_touches_what_is_private_to_another():
    rooms = {}
    for name, file in MODULES.items():
        own, others = private_attributes(file)
        known = rooms.setdefault(room_of(name), (set(), set()))
        known[0].update(filter(private, own))
        known[1].update(others)
    touched = {
        (room, name, other)
        for room, (own, others) in rooms.items()
        for name in others - own
        for other in rooms
        if other != room and name in rooms[other][0]
    }
    assert touched == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_no_private_name_is_imported(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    taken = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("vlprune"))
        for alias in node.names
        if private(alias.name)
    ]
    assert taken == []


#: Training in one file that reads from top to bottom.
LONG = ("pocket/train.py",)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_no_file_is_long(file):
    lines = len(file.read_text(encoding="utf-8").splitlines())
    assert lines <= 400 or file.relative_to(PACKAGE).as_posix() in LONG


def test_the_test_sees_every_kind_of_import(tmp_path):
    """Of the test itself: lazy imports, imports for type checkers, relative ones, and modules by name."""
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}
    assert circles(arrows) == [("b", "c")]
    assert "vlprune.selection.fused" in imports(PACKAGE / "selection" / "dispatch.py")  # by name
    assert "vlprune.media.video" in imports(PACKAGE / "cli" / "ask.py")  # in a function
    assert "vlprune.selection.numerics" in imports(PACKAGE / "selection" / "graph.py")  # relative

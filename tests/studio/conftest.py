"""A session with the pocket model and a drawn scene."""

import threading

import pytest

from vlprune import pocket
from vlprune.cli.options import parse_method
from vlprune.studio.session import Session
from vlprune.studio.visit import Visit


@pytest.fixture(scope="session")
def drawn():
    """A scene's image, and a question about a colour with its answer."""
    (scene,) = pocket.scenes("test", 1, start=18)
    question = next(question for question in pocket.questions(scene) if question.kind == "color")
    return pocket.images([scene])[0], question


@pytest.fixture
def session(loaded, drawn):
    session = Session(loaded, threading.Lock())
    session.show(drawn[0])
    return session


@pytest.fixture
def scene_file(drawn, tmp_path):
    path = tmp_path / "scene.png"
    drawn[0].save(path)
    return path


@pytest.fixture
def visit(loaded, scene_file):
    visit = Visit(loaded, threading.Lock(), parse_method)
    visit.open(str(scene_file))
    return visit

"""A tiny LLaVA. Where there is a GPU its graphs are captured; elsewhere they are put on tape."""

import copy

import pytest
import torch

from tests.support import tiny_llava as tiny
from tests.support.tape import capture_on_tape
from vlprune.cuda_graphs.graphed_model import GraphedModel


@pytest.fixture(scope="session")
def weights(device):
    return tiny.llava(layers=3).to(device)


@pytest.fixture
def model(weights):
    return copy.deepcopy(weights)


@pytest.fixture(scope="session")
def processor():
    return tiny.processor()


@pytest.fixture(scope="session")
def single(processor, device):
    return tiny.inputs(processor, ["what color is the cat ?"], [1], device)


@pytest.fixture(scope="session")
def ragged(processor, device):
    """Rows with 1, 2 and 0 images, left-padded."""
    questions = ["what color is the big red cat ?", "is the left image like the other one ?", "how many dogs ?"]
    return tiny.inputs(processor, questions, [1, 2, 0], device)


@pytest.fixture
def graphed(device):
    """`GraphedModel`, on a CPU with tapes for graphs."""
    return lambda model, **more: GraphedModel(
        model, **{"capture": None if device.type == "cuda" else capture_on_tape, **more}
    )


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

"""Several threads on one attached model: calls wait for each other, and each gets its own answer."""

import copy
import pickle
import pkgutil
import threading
from contextlib import suppress
from importlib import import_module

import pytest
import torch

from tests.support import tiny_llava as tiny
from vlprune import FastV, Random, Script, attach, pruning

GREEDY = {"do_sample": False, "max_new_tokens": 4}
TIMEOUT = 30


@pytest.fixture(scope="module")
def prompts(processor, device):
    texts = ["what color is the cat ?", "how many dogs ?", "where is the big red dog ?"]
    return [tiny.inputs(processor, [text], [1], device, seed=i) for i, text in enumerate(texts)]


def in_threads(function, jobs, threads=4):
    """What the function returns for each job; a call that never ends is told, and not waited for."""
    found, waiting = {}, list(enumerate(jobs))

    def work():
        while waiting:
            with suppress(IndexError):  # another thread was quicker
                number, job = waiting.pop(0)
                found[number] = function(job)

    crew = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join(TIMEOUT)
    assert len(found) == len(jobs), "a call failed, or was kept out"
    return [found[number] for number in range(len(jobs))]


@pytest.mark.parametrize("method", [Script(keep=9), FastV(keep=9)], ids=lambda method: method.name)
def test_generate_and_forward_of_several_threads(model, processor, prompts, method):
    """As one after the other, whoever comes first."""

    def call(job):
        number, direct = job
        if direct:
            with torch.no_grad():
                return model(**prompts[number]).logits
        return model.generate(**prompts[number], **GREEDY)

    jobs = [(i % 3, i % 2 == 1) for i in range(36)]
    with attach(model, method, processor=processor):
        alone = {job: call(job) for job in set(jobs)}
        found = in_threads(call, jobs)
    assert all(torch.equal(one, alone[job]) for one, job in zip(found, jobs))


def test_a_call_waits_for_the_one_that_runs(model, single):
    """A second thread that asks while the first generates is served when that one is done."""
    order, threads = [], []

    def also(ids, scores):
        if not threads:
            threads.append(
                threading.Thread(target=lambda: order.append((model.generate(**single, **GREEDY), "second")))
            )
            threads[0].start()
            threads[0].join(0.5)
            assert threads[0].is_alive()  # it waits
        return scores

    with attach(model, Random(keep=9)):
        first = model.generate(**single, **GREEDY, logits_processor=[also])
        order.append((first, "first"))
        threads[0].join(TIMEOUT)
    assert sorted(name for _, name in order) == ["first", "second"]
    assert torch.equal(order[0][0], order[1][0])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("direct", [False, True], ids=["generate", "forward"])
def test_a_call_that_fails_keeps_nobody_out(model, single, error, direct):
    def fail(module, args):
        raise error

    with attach(model, Random(keep=9)):
        expected = model.generate(**single, **GREEDY)
        handle = model.get_decoder().layers[0].register_forward_pre_hook(fail)
        with pytest.raises(error):
            model(**single) if direct else model.generate(**single, **GREEDY)
        handle.remove()
        if direct:
            with torch.no_grad():
                model(**single)  # this thread's next call ends what Ctrl-C left behind
        assert torch.equal(in_threads(lambda _: model.generate(**single, **GREEDY), [0])[0], expected)


def test_no_control_flow_by_base_exceptions():
    """What passes by `except Exception` would end a thread without a word."""
    modules = [import_module(f"vlprune.pruning.{found.name}") for found in pkgutil.iter_modules(pruning.__path__)]
    kinds = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    errors = [kind for kind in kinds if issubclass(kind, BaseException)]
    assert len(errors) >= 2
    assert all(issubclass(kind, Exception) for kind in errors)


def test_an_attached_model_is_not_copied(model):
    with attach(model, Random(keep=9)):
        with pytest.raises(TypeError, match="cannot be copied: detach it"):
            copy.deepcopy(model)
        with pytest.raises(TypeError, match="cannot be pickled: detach it"):
            pickle.dumps(model)
    copy.deepcopy(model)

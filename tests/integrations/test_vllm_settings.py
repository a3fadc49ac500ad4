"""What can be said about the plug-in without vLLM: settings, requests, and that nothing here needs it."""

import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest

from vlprune import Budget, DivPrune, Script, get_method, list_methods
from vlprune.integrations.vllm import overrides, plugin
from vlprune.integrations.vllm.request import PruneRequest, requested_keep, split_kwargs
from vlprune.integrations.vllm.settings import Settings
from vlprune.methods.in_llm import split_stages


def test_vllm_is_not_imported_before_it_asks():
    code = (
        "import sys, vlprune, vlprune.integrations.vllm; assert not any(m.split('.')[0] == 'vllm' for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", [name for name in list_methods() if split_stages(get_method(name))[1] is None])
def test_settings_survive_the_way_through_a_config(name):
    settings = Settings(get_method(name, keep=Budget(per_tile=8)), cache_bytes=5)
    assert Settings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize("name", ["fastv", "pyramiddrop", "sparsevlm"])
def test_methods_inside_the_llm_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"method='{name}': chooses inside the LLM, where vLLM cannot drop tokens"):
        Settings(get_method(name))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "vlprune=None: pass an object such as"),
        ({"method": "skript"}, "name='skript': no such method; did you mean 'script'"),
        ({"method": "script", "kep": 3}, "kep=3: script has no such setting; did you mean 'keep'"),
        ({"keep": {"per_tyle": 3}}, "no such field 'per_tyle'"),
        ({"keep": 64, "image_pruning_rate": 0.5}, "pass one of them"),
        ({"keep": 64, "cache_bytes": -1}, "cache_bytes=-1: pass a number of bytes"),
        ({"keep": 64, "relevance": "clip"}, "relevance='clip' needs dual_encoder="),
        ({"method": "trim", "adaptive": True, "keep": 0.5}, "must know the number of tokens before"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Settings.from_dict(given)


def test_overrides_change_a_config_and_can_be_sent_to_other_processes():
    change = pickle.loads(pickle.dumps(overrides(Script(keep=0.25))))
    config = change(SimpleNamespace(architectures=["LlavaForConditionalGeneration"]))
    assert config.architectures == ["PrunedLlavaForConditionalGeneration"]
    assert change(config).architectures == ["PrunedLlavaForConditionalGeneration"]
    assert Settings.from_dict(config.vlprune).method == Script(keep=0.25)


def test_another_question_or_budget_is_another_request():
    made = [PruneRequest(keep, ids) for keep in (8, 0.5, {"per_tile": 8}) for ids in ((1, 2), (2, 1), ())]
    assert len({request.to_json() for request in made}) == len(made)
    for request in made:
        assert PruneRequest.from_tensor(request.to_tensor("x")).keep == request.keep


def test_a_requests_own_words_are_taken_out_of_the_processors_arguments():
    plain, ours = split_kwargs({"vlprune": {"keep": 3, "query": "who?"}, "size": 9})
    assert plain == {"size": 9}
    assert requested_keep(ours, 64) == 3
    assert requested_keep({}, Budget(per_tile=4)) == {"per_tile": 4}


@pytest.mark.parametrize("version", ["0.31.0", "0.33rc1", "1.0"])
def test_an_untested_version_gives_one_warning(monkeypatch, version):
    monkeypatch.setattr(plugin, "vllm_version", lambda: version)
    with pytest.warns(UserWarning, match=f"vlprune: tested with vLLM 0.32, not with {version}") as seen:
        plugin.warn_if_untested()
    assert len(seen) == 1


def test_a_tested_version_gives_none(monkeypatch, recwarn):
    monkeypatch.setattr(plugin, "vllm_version", lambda: "0.32.4")
    plugin.warn_if_untested()
    assert not recwarn


def test_a_method_that_is_not_one_is_refused():
    with pytest.raises(TypeError, match="method='divprune': pass a Method"):
        overrides("divprune")
    assert overrides(DivPrune(keep=3)).settings["keep"] == 3

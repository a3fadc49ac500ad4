"""`vlprune methods` and `vlprune models`."""

import vlprune


def test_methods_and_models(run):
    code, out, _ = run("methods")
    assert code == 0
    for word in (*vlprune.list_methods(), "tau=0.3"):
        assert word in out
    code, out, _ = run("models")
    assert code == 0
    assert "LlavaForConditionalGeneration" in out


def test_settings_and_presets_are_listed_as_they_are_typed(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run("methods")
    for piece in ("tau=0.3", "adaptive=false", "contextual=none", "presets: 192, 128, 64, 32, 16"):
        assert piece in out

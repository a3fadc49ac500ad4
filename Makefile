# Each target makes the environment (.venv) itself when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
VLLM := .venv-vllm/bin
VLLM_STAMP := .venv-vllm/.ready
LMMS := .venv-lmms/bin
LMMS_STAMP := .venv-lmms/.ready
STUDIO := .venv-studio/bin
STUDIO_STAMP := .venv-studio/.ready
# pip's own wheel folders, if it has any, are given to uv too, which does not read pip's settings
LINKS := $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)

.PHONY: demo test test-integrations test-lmms-eval test-studio lint bench clean

demo: $(STAMP)  ## answer questions about a drawn scene from 64 of 576 visual tokens
	$(BIN)/vlprune demo

test: lint  ## lint, types and tests
	$(BIN)/pytest -n 2 --dist loadfile

test-integrations: $(VLLM_STAMP) test-lmms-eval test-studio  ## the tests in a browser, and those inside the real lmms-eval and vLLM, each in an environment of its own
	PYTHONPATH=tests/integrations/vllm/site:. $(VLLM)/python -m pytest tests/integrations/vllm

test-lmms-eval: $(LMMS_STAMP)  ## the tests inside a real lmms-eval
	PYTHONPATH=tests/integrations/vllm/site:. $(LMMS)/python -m pytest tests/integrations/lmms_eval

test-studio: $(STUDIO_STAMP)  ## the studio's tests in a real browser, in an environment of its own
	@command -v chromium >/dev/null || { echo "the studio's tests need Chromium: apt-get install chromium"; exit 1; }
	$(STUDIO)/python -m pytest tests/integrations/studio

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## time selection and the pruned model on this machine
	$(BIN)/python benchmarks/selection.py
	$(BIN)/python benchmarks/pocket.py

clean:
	rm -rf .venv .venv-vllm .venv-lmms .venv-studio

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q uv
	UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python -c constraints.txt -e ".[dev]"
	touch $(STAMP)

# torchaudio and torchcodec come as CUDA builds, which fail to load beside a CPU torch; nothing here needs them.
INSTALL_VLLM := UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --python $(VLLM)/python -r tests/integrations/vllm/requirements.txt
$(VLLM_STAMP): $(STAMP) pyproject.toml tests/integrations/vllm/requirements.txt
	test -x $(VLLM)/python || $(BIN)/uv venv --python $(BIN)/python .venv-vllm
	$(INSTALL_VLLM) || $(INSTALL_VLLM)
	$(BIN)/uv pip uninstall --python $(VLLM)/python torchaudio torchcodec
	UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --python $(VLLM)/python --no-deps -e .
	touch $(VLLM_STAMP)

INSTALL_LMMS := UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --python $(LMMS)/python -r tests/integrations/lmms_eval/requirements.txt
$(LMMS_STAMP): $(STAMP) pyproject.toml tests/integrations/lmms_eval/requirements.txt
	test -x $(LMMS)/python || $(BIN)/uv venv --python $(BIN)/python .venv-lmms
	$(INSTALL_LMMS) || $(INSTALL_LMMS)
	UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --python $(LMMS)/python --no-deps -e .
	touch $(LMMS_STAMP)

INSTALL_STUDIO := UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --python $(STUDIO)/python -r tests/integrations/studio/requirements.txt
$(STUDIO_STAMP): $(STAMP) pyproject.toml tests/integrations/studio/requirements.txt
	test -x $(STUDIO)/python || $(BIN)/uv venv --python $(BIN)/python .venv-studio
	$(INSTALL_STUDIO) || $(INSTALL_STUDIO)
	UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --python $(STUDIO)/python -e ".[studio,video]" -r tests/integrations/studio/requirements.txt
	touch $(STUDIO_STAMP)

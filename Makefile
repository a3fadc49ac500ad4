# Each target makes the environment (.venv) itself when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
# pip's own wheel folders, if it has any, are given to uv too, which does not read pip's settings
LINKS := $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)

# Bytecode is kept, whatever this machine says: without it each process compiles torch and transformers anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-matrix test-integrations test-vllm test-lmms-eval test-studio lint bench clean

demo: $(STAMP)  ## answer questions about a drawn scene from 64 of 576 visual tokens
	$(BIN)/vlprune demo

test: lint  ## lint, types and tests; what a test starts takes one thread, beside the other process's
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

# The oldest and the newest versions that pyproject.toml allows, each in an environment of its own: Python, torch, transformers
MATRIX ?= 3.10=2.6.0=5.17.0 3.11=2.6.0=5.17.0 3.12== 3.13==
CORE := tests/selection tests/methods tests/models tests/pruning tests/vision tests/cuda_graphs tests/evaluation tests/cli tests/measure tests/media tests/test_budget.py
test-matrix: $(STAMP)  ## the core tests on the oldest and newest torch and transformers, on Python 3.10 to 3.13
	@set -e; for cell in $(MATRIX); do \
	  python=$${cell%%=*}; versions=$${cell#*=}; torch=$${versions%%=*}; transformers=$${versions#*=}; place=.venv-matrix/$$python-$${torch:-new}; \
	  echo "== Python $$python, torch $${torch:-newest}, transformers $${transformers:-newest}"; \
	  $(BIN)/uv venv -q --allow-existing --python $$python $$place; \
	  UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install -q --python $$place/bin/python -e ".[video,studies]" pytest pytest-xdist hypothesis peft accelerate setuptools \
	    "torch$${torch:+==$$torch}" "transformers$${transformers:+==$$transformers}"; \
	  $$place/bin/python -m pytest -n 2 --dist loadfile -p no:cacheprovider $(CORE); \
	done

test-integrations: test-vllm  ## the tests that need other programs, each in an environment of its own; the last two at once
	$(MAKE) -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) test-lmms-eval test-studio

test-vllm: .venv-vllm/.ready  ## the tests inside a real vLLM
	PYTHONPATH=tests/integrations/vllm/site:. .venv-vllm/bin/python -m pytest -n 2 --dist loadfile tests/integrations/vllm

test-lmms-eval: .venv-lmms_eval/.ready  ## the tests inside a real lmms-eval
	PYTHONPATH=tests/integrations/vllm/site:. .venv-lmms_eval/bin/python -m pytest tests/integrations/lmms_eval

test-studio: .venv-studio/.ready  ## the studio's tests in a real browser, and the example server's
	@command -v chromium >/dev/null || { echo "the studio's tests need Chromium: apt-get install chromium"; exit 1; }
	.venv-studio/bin/python -m pytest tests/integrations/studio tests/integrations/test_fastapi.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## time selection and the pruned model on this machine
	$(BIN)/python benchmarks/selection.py
	$(BIN)/python benchmarks/pocket.py

clean:
	rm -rf .venv .venv-*

# The last line compiles what commands import, a quarter of all files, so that the first command does not wait for it.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q uv
	UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --python $(BIN)/python -c constraints.txt -e ".[dev]"
	$(BIN)/python -c "from vlprune import pocket; import matplotlib.pyplot; pocket.load()"
	touch $(STAMP)

# .venv-NAME is for tests/integrations/NAME, whose pins differ from ours. torchaudio and torchcodec come as CUDA builds,
# which fail to load beside a CPU torch; nothing here needs them.
EXTRAS_studio := [studio,video]
UV_INSTALL := UV_FIND_LINKS="$(LINKS)" $(BIN)/uv pip install --python
.venv-%/.ready: $(STAMP) pyproject.toml tests/integrations/%/requirements.txt
	test -x .venv-$*/bin/python || $(BIN)/uv venv --python $(BIN)/python .venv-$*
	for try in 1 2; do $(UV_INSTALL) .venv-$*/bin/python -r tests/integrations/$*/requirements.txt && break; done
	$(BIN)/uv pip uninstall --python .venv-$*/bin/python torchaudio torchcodec
	$(UV_INSTALL) .venv-$*/bin/python -e ".$(EXTRAS_$*)" $(if $(EXTRAS_$*),-r tests/integrations/$*/requirements.txt,--no-deps)
	touch $@

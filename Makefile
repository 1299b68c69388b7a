# Every target does its own set-up, virtual environment included; Python 3.11 or newer is all it needs.
PYTHON ?= python3
VENV ?= .venv
PIP := $(VENV)/bin/pip --disable-pip-version-check --quiet
RUN := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false $(VENV)/bin/python -m

.PHONY: demo test test-slow test-gpu lint browser clean

$(VENV)/core.stamp: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	$(PIP) install --constraint constraints.txt --editable '.[train,eval,ray,quantize,dev]'
	touch $@

$(VENV)/eval.stamp: $(VENV)/core.stamp
	$(PIP) install --constraint constraints.txt --editable '.[eval]'
	touch $@

demo: $(VENV)/eval.stamp  ## the effect, on the built-in models
	$(VENV)/bin/voidpad demo

lint: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check voidpad tests studies
	$(VENV)/bin/ruff format --check voidpad tests studies
	$(VENV)/bin/mypy

test: lint  ## everything CI runs
	$(RUN) pytest -q -n 2

test-slow: $(VENV)/dev.stamp  ## long checks
	$(RUN) pytest -q -m slow

test-gpu:  ## on a GPU machine, with whatever supported versions it has
	$(PYTHON) -m pytest -q -m gpu

browser:  ## Debian's Chromium, for the tests of the replay page
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

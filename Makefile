# Every target does its own set-up, virtual environment included; Python 3.11 or newer is all it needs.
PYTHON ?= python3
VENV ?= .venv
# The versions CI uses; a file of other pins tests other versions.
CONSTRAINTS ?= constraints.txt
PIP := $(VENV)/bin/pip --disable-pip-version-check --quiet
RUN := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false $(VENV)/bin/python -m

.PHONY: demo test test-slow test-gpu test-data lint docs docs-serve coverage release browser clean

$(VENV)/core.stamp: pyproject.toml $(CONSTRAINTS)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint $(CONSTRAINTS) --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[train,eval,ray,quantize,serve,docs,dev]'
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

# Files in their order: sorted by number of tests, the few long ones come last and one process waits for the other.
test: lint docs  ## everything CI runs
	$(RUN) pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/dev.stamp  ## long checks
	$(RUN) pytest -q -m slow

test-gpu:  ## on a GPU machine, with whatever supported versions it has
	$(PYTHON) -m pytest -q -m gpu

test-data: $(VENV)/dev.stamp  ## benchmark files for the tests that skip without them; needs the Hugging Face hub
	$(RUN) studies.release.fetch_test_data build/test-data

docs: $(VENV)/dev.stamp  ## the site in build/site; a warning, such as a dead link, is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict  # not --quiet: it hides warnings from --strict too

docs-serve: $(VENV)/dev.stamp  ## the site on 127.0.0.1:8000, rebuilt when a page changes
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs serve

coverage: $(VENV)/dev.stamp  ## lines and branches that `make test` runs, without what runs in child processes
	rm -rf build/coverage
	$(RUN) coverage run -m pytest -q
	$(RUN) coverage combine -q
	$(RUN) coverage report

release: $(VENV)/dev.stamp  ## build, check and try the wheel; uploads nothing
	$(RUN) studies.release.check_wheel dist

browser:  ## Debian's Chromium, for the tests of the replay page
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

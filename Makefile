# make demo   a real Keras model on two local replicas, compared with one device
# make test   linter, types, generated files, tests, notebook, documentation
# make bench  this project beside its peers on this machine and over test hosts, as a table, JSON and a picture; an hour
# make gpu-check  on a machine with a GPU: what is right there, how fast it is, and what is copied; six minutes
# make docs   the documentation as a site in site/, to be opened without a server; warnings are errors
# make dist   what is published, in dist/; the wheel is tried in an environment that has no sources
#
# CI runs `make test-long`, `make test-packages`, `make test-oldest` and `make test-pythons` besides: more combinations and
# repetitions, data of other packages, the oldest versions of the dependencies, and a quick part on Python 3.12 and 3.13
# where PATH has them. `make test-next` runs the quick tests on the newest pre-releases of TensorFlow and Keras.
# All need Python 3.11 to 3.13 with pip, and make, and put everything else into .venv here. Knobs, with their defaults:
#   PYTHON=          interpreter for a new .venv (the first of python3, python3.13, python3.12, python3.11 that fits)
#   VENV=.venv       where to install
#   JOBS=2           test processes (0: all in one, so that TensorFlow is imported once)
#   PART=0/1         of the long tests, which part: 0/2 and 1/2 are two halves
#   BENCH_ARGS=      words for `make bench`, say BENCH_ARGS="--only hosts --models mlp"
#   GPU_ARGS=        words for `make gpu-check`, say GPU_ARGS="--only right" or GPU_ARGS="--device cpu --tiny"
#   PYTEST_ARGS=     more words for pytest, say PYTEST_ARGS="-k plan -x"

VENV ?= .venv
JOBS ?= 2
PART ?= 0/1
PYTEST_ARGS ?=
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
PYTEST = $(PY) -m pytest -n $(JOBS) --dist loadfile --durations 10
OLDEST := .venv-oldest
NEXT := .venv-next
BENCH := .venv-bench
DIST := .venv-dist
BENCH_ARGS ?=
GPU_ARGS ?=
PYTHONS := 3.12 3.13
QUICK := $(addprefix tests/,planning resource_spec strategy plan proto step seams auto/test_auto.py auto/test_predictions.py \
    capture/test_plain_traces.py equality/test_cut.py front/test_promises.py)
OF_WHEEL := tests/equality/test_cut.py tests/front/test_promises.py
METADATA := setup.cfg setup.py pyproject.toml

FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(firstword $(foreach python,python3 python3.13 python3.12 python3.11,$(shell $(python) -c '$(FITS)' 2>/dev/null && echo $(python))))

# Test processes, and the programs that they start, read what an earlier one has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint types proto-check proto pytest test-long test-packages test-oldest test-next test-pythons $(PYTHONS:%=test-python%) bench gpu-check docs dist clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

demo: $(VENV)/.installed
	$(PY) examples/train.py

test: lint types proto-check pytest

lint: $(VENV)/.installed-test
	$(PY) -m ruff check .

types: $(VENV)/.installed-test
	$(PY) -m mypy

proto-check: $(VENV)/.installed-test
	$(PY) proto/generate.py --check

proto: $(VENV)/.installed-test
	$(PY) proto/generate.py

pytest: $(VENV)/.installed-test
	$(PYTEST) --no-loadscope-reorder -m "not long" $(PYTEST_ARGS)

# More combinations of what `make test` shows on some, and what takes its time.
test-long: $(VENV)/.installed-test
	$(PYTEST) -m long --part $(PART) $(PYTEST_ARGS)

# Data and models of other packages, Orbax's checkpoints, and Ray: what these tests need is installed here only, since it is large.
test-packages: $(VENV)/.installed-packages
	$(PYTEST) --dist worksteal -m long -k "other_packages or orbax or real_examples" tests/test_real_examples.py tests/front/test_keras_loops.py tests/callbacks/test_keras_callbacks.py $(PYTEST_ARGS)
	$(PYTEST) -m long tests/cluster/test_ray.py

# A part of the tests on the lower bounds of setup.cfg, in a virtual environment of its own.
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -n $(JOBS) -m "oldest and not long" $(PYTEST_ARGS)
	$(OLDEST)/bin/python examples/train.py

# The quick tests on the newest pre-releases of TensorFlow and Keras. The environment is new each time, as they are.
test-next:
	rm -rf $(NEXT) && $(PYTHON) -m venv $(NEXT)
	$(NEXT)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[test]'
	$(NEXT)/bin/python -m pip --disable-pip-version-check install --quiet --pre --upgrade tensorflow
	$(NEXT)/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes keras
	$(NEXT)/bin/python -m pip --disable-pip-version-check install --quiet --pre --force-reinstall --no-deps keras-nightly
	$(NEXT)/bin/python examples/train.py
	$(NEXT)/bin/python -m pytest -n $(JOBS) --dist loadfile -m "not long" $(PYTEST_ARGS)

# A quick part of the tests on the other versions of Python, each in a virtual environment of its own, where PATH has them.
test-pythons: $(PYTHONS:%=test-python%)

$(PYTHONS:%=test-python%): test-python%:
	@if python$* -c '' 2>/dev/null; then $(MAKE) --no-print-directory .venv-$*/.installed && \
	echo "python$*: $(QUICK)" && .venv-$*/bin/python -m pytest -n $(JOBS) -q -m "not long" $(QUICK) $(PYTEST_ARGS); \
	else echo "python$* is not on PATH, or does not start: the tests on it are left out"; fi

# The peers come from their released packages, in a virtual environment of their own.
bench: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/bench.py $(BENCH_ARGS)

# A script, so that it also runs where there is nothing but Python: python3 benchmarks/gpu.py
gpu-check: $(VENV)/.installed
	$(PY) benchmarks/gpu.py $(GPU_ARGS)

docs: $(VENV)/.installed-docs
	$(PY) -m doctest docs/docstrings.py docs/colab.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --clean
	@echo "The site is in site/: open site/index.html. Its search needs a server: python3 -m http.server -d site"

# The tests run in a folder without the packages' sources, so they import what the wheel has installed.
dist:
	rm -rf dist build $(DIST)
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip --disable-pip-version-check install --quiet 'build>=1.2,<2' 'twine>=6,<7'
	$(DIST)/bin/python -m build --outdir dist
	$(DIST)/bin/python -m twine check --strict dist/*
	rm -rf $(DIST) && $(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip --disable-pip-version-check install --quiet "$$(echo dist/*.whl)[test]"
	mkdir -p build/dist && cp -r tests examples pyproject.toml setup.cfg build/dist
	cd build/dist && ../../$(DIST)/bin/python examples/train.py
	cd build/dist && ../../$(DIST)/bin/python -m pytest -n $(JOBS) -q -m "not long" $(OF_WHEEL) $(PYTEST_ARGS)

$(PY) $(OLDEST)/bin/python $(BENCH)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 to 3.13 among python3, python3.13, python3.12, python3.11. Install one, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c '$(FITS)' || { echo "$(PYTHON) is not Python 3.11 to 3.13. Name another one: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(@D)/..

# A stamp for each kind of installation: pip runs again only when the metadata is newer.
$(VENV)/.installed: $(METADATA) | $(PY)
	$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: $(METADATA) | $(PY)
	$(PIP) install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-packages: $(METADATA) | $(PY)
	$(PIP) install --quiet --editable '.[test,packages]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-docs: $(METADATA) | $(PY)
	$(PIP) install --quiet --editable '.[docs]'
	@touch $@ $(VENV)/.installed

$(OLDEST)/.installed: $(METADATA) tests/constraints-oldest.txt | $(OLDEST)/bin/python
	$(OLDEST)/bin/python -m pip --disable-pip-version-check install --quiet --constraint tests/constraints-oldest.txt --editable '.[test]'
	@touch $@

$(BENCH)/.installed: $(METADATA) | $(BENCH)/bin/python
	$(BENCH)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[bench]'
	@touch $@

$(PYTHONS:%=.venv-%/.installed): .venv-%/.installed: $(METADATA)
	python$* -m venv .venv-$*
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(NEXT) $(BENCH) $(DIST) $(PYTHONS:%=.venv-%) build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache

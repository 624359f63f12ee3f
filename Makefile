# Set-up and the jobs that people run. Everything happens in .venv, made with pip (uv would not find torch's CPU build).
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready

.PHONY: venv demo test test-all test-unit lint bench portbugs portbugs-steps originals public-pairs clean help

help:
	@echo "make demo    align a torch and a paddle network, find a planted bug, print the verdict"
	@echo "make test    the tests; of large grids of cases one in a few"
	@echo "make test-all   every case of every grid, too"
	@echo "make lint    ruff, mypy strict"
	@echo "make bench   the benchmarks: ratios, a table each"
	@echo "make portbugs   planted mistakes of porting and who finds them; ARGS=--verbose, ARGS='--only *eps*', ARGS=--check"
	@echo "make public-pairs   align() on models of public packages; ARGS='--only resnet18', ARGS=--all"
	@echo "make venv    only the set-up"

venv: $(STAMP)

$(STAMP): requirements.txt pyproject.toml hatch_build.py src/twinscope/_kernels.c
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt > $(VENV)/pip.log 2>&1 || (cat $(VENV)/pip.log; false)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . >> $(VENV)/pip.log 2>&1 || (cat $(VENV)/pip.log; false)
	@touch $@

demo: $(STAMP)
	@$(VENV)/bin/twinscope demo

# The frameworks share no process: paddle before mindspore does not load, so each gets a run of its own.
test: $(STAMP)
	@$(PY) tests/run.py

# The same, with every case of the grids that `make test` takes one in a few of.
test-all: $(STAMP)
	@$(PY) tests/run.py --all

test-unit: $(STAMP)
	@$(PY) -m pytest tests/unit -n 2

lint: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

bench: $(STAMP)
	@for b in benchmarks/*.py; do echo "== $$b"; $(PY) $$b || exit 1; done

portbugs: $(STAMP)
	@$(MAKE) --silent originals || echo "without PaDiff 0.2: its environment could not be made"
	@$(PY) benchmarks/portbugs/run.py $(ARGS)

portbugs-steps: $(STAMP)
	@$(PY) benchmarks/portbugs/steps.py $(ARGS)

# PaDiff 0.2 as published, beside the same frameworks: in an environment of its own, since its import name is ours here.
ORIGINALS := benchmarks/.originals

originals: $(ORIGINALS)/.ready

$(ORIGINALS)/.ready: $(STAMP)
	@rm -rf $(ORIGINALS)
	@$(PY) -m venv $(ORIGINALS)
	@$(ORIGINALS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "padiff==0.2.*" pyyaml
	@$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
		$$($(ORIGINALS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/frameworks.pth
	@touch $@

# Packages of their own: torchvision, timm and mindcv ask for other versions of what the frameworks share, so --no-deps.
PAIRS := benchmarks/public_pairs

public-pairs: $(PAIRS)/.packages/.ready
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-2} $(PY) $(PAIRS)/run.py $(ARGS)

$(PAIRS)/.packages/.ready: $(PAIRS)/requirements.txt $(STAMP)
	@rm -rf $(PAIRS)/.packages
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target $(PAIRS)/.packages -r $< > $(VENV)/pip-pairs.log 2>&1 || (cat $(VENV)/pip-pairs.log; false)
	@touch $@

clean:
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis

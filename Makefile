# Every target that runs something first makes its own virtual environment, so that a fresh clone
# needs nothing but make and Python.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The environment is reused as long as all that it was made from is the same. The name of the
# stamp is a checksum of the contents, because git changes modification times without changing
# contents. The directory belongs to it, because a virtual environment cannot be moved.
KEY := $(shell { cat pyproject.toml constraints.txt; echo '$(CURDIR)'; $(PYTHON) -VV; } 2>&1 | cksum | tr ' ' '-')
STAMP := $(VENV)/.installed-$(KEY)
PEERS := $(VENV)/.peers-$(KEY)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Where the environment forbids bytecode, every process that a test starts would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-engines bench figures mutants lint clean

demo: $(STAMP)
	$(BIN)/secagg demo

# The tests of the package `secagg` must cover all of its branches. The others run without the tracer, in half the
# time, and so do the long ones that reach no branch that the rest leaves out.
LONG := $(patsubst %,tests/%.py,$(addprefix secagg/test_,fuzz residue_packing ring_sessions stateful uniformity vectors \
	verifier_evidence) $(addprefix attacks/test_,liar_bars liars_evidence network_memory network_uploads))
COVERING := $(filter-out $(LONG),$(wildcard tests/secagg/test_*.py tests/secagg/net/test_*.py tests/attacks/test_*.py) \
	tests/sims/test_package_conflicts.py)

test: lint
	$(BIN)/pytest $(COVERING) -n 2 --cov
	$(BIN)/pytest -n 2 $(COVERING:%=--ignore=%)

# The same tests, each once, and the long ones, which run without the tracer: it would treble their time. `protocols`
# must be covered in all branches, and `sims` in nine lines of ten, apart from the code for engines.
COVERING_ALL := $(COVERING) tests/protocols tests/sims tests/golden

test-all: lint
	$(BIN)/pytest $(COVERING) -n 2 --cov
	$(BIN)/pytest tests/protocols -n 2 --cov=protocols
	$(BIN)/pytest tests/sims tests/golden -n 2 --cov=sims --cov-config=tests/coverage-of-lines.ini
	$(BIN)/pytest -n 2 $(COVERING_ALL:%=--ignore=%)
	$(BIN)/pytest -n 2 -m slow

# Each engine has an environment of its own, in which the package is installed as a wheel, each time anew: the examples
# run from it.
ENGINES := ray flower nvflare
ENGINE_EXTRAS := fl,sims,deploy,metrics,dev

test-engines: $(ENGINES:%=test-engine-%)

test-engine-%: $(VENV)-%/.installed-$(KEY)
	@rm -rf build  # or files that are gone would be in the wheel
	@$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	$(VENV)-$*/bin/python -m pytest tests/engines -m 'slow or not slow' -k '$*' -p no:cacheprovider -rs

$(VENV)-%/.installed-$(KEY):
	@echo "Installing into $(VENV)-$* ..."
	@rm -rf $(VENV)-$* && $(PYTHON) -m venv $(VENV)-$*
	@$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt '.[$(ENGINE_EXTRAS),$*]'
	@touch $@

.PRECIOUS: $(VENV)-%/.installed-$(KEY)

# Writes docs/benchmarks.md, with Flower beside us wherever it can be installed.
bench: $(STAMP)
	@test -e $(PEERS) || { \
		echo "Installing Flower, to compare with ..."; \
		$(INSTALL) -e '.[fl,sims,dev,peers]' && touch $(PEERS); \
	} || echo "Flower cannot be installed here: the comparison is left out." >&2
	$(BIN)/python -m benchmarks --write docs/benchmarks.md --long

# Redraws the figures and tables of papers/results.md from the results that are kept beside it.
figures: $(STAMP)
	$(BIN)/python -m papers

mutants: $(STAMP)
	$(BIN)/python -m scripts.mutants

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The old stamps go first and the new one comes last: whatever interrupts this, no stamp is left
# beside an incomplete environment.
$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "secagg needs Python 3.11 or newer, and '$(PYTHON)' is not: try make PYTHON=python3.11" >&2; \
		exit 1; }
	@echo "Installing into $(VENV) ..."
	@rm -f $(VENV)/.installed-*
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e '.[fl,sims,dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(ENGINES:%=$(VENV)-%) build dist *.egg-info .coverage .coverage.* htmlcov
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find secagg protocols fl sims benchmarks papers tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

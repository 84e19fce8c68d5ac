# make plan      an answer on a fresh machine: sets up .venv, plans Llama 3.1 70B
# make test      every test that guards behaviour: 5 minutes on two idle cores, with the set-up
# make evidence  lint, then the proofs that take longer: torch and other oracles, events against the closed form at
#                full size, property tests at length, every pair of profiles, refits, docs/accuracy.json
#                written again: 30 minutes on two cores
# make lint      ruff, mypy, import-linter
# make mutants   change one place of simulator/ at a time, say what no test notices; two hours
# make load      200 clients click on the explorer for 5 minutes: waits, memory, what is lost; LOAD='--seconds 60'
# make lowest    run commands and tests with the lowest versions of dependencies that pyproject.toml allows
# make bench     time what tests/benchmarks holds, and what a user waits for against goals and the last landing:
#                python -m tests.benchmarks.waits --write keeps what it measured in tests/benchmarks/waits.csv
# make house     count files, lines, names and calls, which the house rules are measured by (tests/house)
# make accuracy  predict the shipped runs and write docs/accuracy*.md, docs/accuracy.json and docs/goodput.md again
# make profiles  fit the shipped hardware profiles again from validation/microbenchmarks
# make reports   write reports/gallery again
# make measure-here   time kernels, collectives and steps on this machine's CPU, in 5 minutes
# make calibrate-here time this machine's CPU and fit a profile to it, predict training steps, run them, compare;
#                     6 minutes: HERE='--wait 1800' waits for an idle machine
# make clean     delete caches and build output (not .venv)
#
# Variables: PYTHON=python3.12             which interpreter makes .venv (3.11 or newer)
#            TORCH='torch==2.13.0'         what `make test` and `make evidence` install
#            TORCH_INDEX='--index-url URL' where pip gets it, e.g. an index of CPU builds
#            PYTEST_ARGS='-k memory'       passed on to pytest
#
# Installing happens only when pyproject.toml (or TORCH) has changed since the last time, and needs
# the network only for what is missing.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PYTEST_ARGS ?=
MUTANTS ?=
LOAD ?=

VENV := .venv
BIN := $(VENV)/bin
# Python compiles a module when it is first imported: of those installed, tests import a third.
PIP_INSTALL := $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-compile
STAMPS := $(VENV)/stamps
TORCH_STAMP := $(STAMPS)/$(subst =,-,$(subst /,-,$(firstword $(TORCH))))

# Compiled modules are kept: every process that starts would compile them again, half a second each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := plan
ifndef TOGETHER
.NOTPARALLEL:
endif
.DELETE_ON_ERROR:
.PHONY: plan test evidence lint mutants load lowest bench house accuracy profiles reports measure-here calibrate-here clean

plan: $(STAMPS)/foreshard
	$(BIN)/foreshard plan examples/llama-3.1-70b.toml
	@$(MAKE) --no-print-directory $(STAMPS)/compiled

# On a fresh machine bytecode of tests takes a core, machine code and torch the other. Files stand in the
# order of their names: those at the end are short, so that no core waits long for the other.
test: $(STAMPS)/test
	@$(MAKE) --no-print-directory --jobs=2 TOGETHER=yes $(STAMPS)/collected $(STAMPS)/compiled $(TORCH_STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

evidence: lint $(TORCH_STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile -m 'evidence or hypothesis' \
	    --hypothesis-profile=evidence $(PYTEST_ARGS)

lint: $(STAMPS)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

mutants: $(STAMPS)/test $(TORCH_STAMP)
	$(BIN)/python -m tests.mutations.mutants $(MUTANTS)

load: $(STAMPS)/test
	$(BIN)/python -m tests.explorer.load $(LOAD)

lowest: $(STAMPS)/venv
	$(BIN)/python -m tests.lowest .venv-lowest

bench: $(STAMPS)/test $(STAMPS)/compiled
	$(BIN)/python -m pytest tests/benchmarks -m '' --benchmark-enable --benchmark-only $(PYTEST_ARGS)
	$(BIN)/python -m tests.benchmarks.waits

house: $(STAMPS)/foreshard
	$(BIN)/python -m tests.house.figures

accuracy: $(STAMPS)/test
	$(BIN)/python -m workshop.pages.accuracy.page docs
	$(BIN)/python -m workshop.pages.goodput docs
	$(BIN)/python -m tests.scoring.held_runs
	$(BIN)/python -m tests.scoring.held_models
	$(BIN)/python -m tests.scoring.held_answers
	$(BIN)/python -m tests.scoring.held_screens

profiles: $(STAMPS)/foreshard
	$(BIN)/python -m workshop.fits.refit

reports: $(STAMPS)/foreshard
	mkdir -p reports/gallery
	set -e; for scenario in $(patsubst %,examples/%.toml,deepseek-v3 llama-3.1-70b llama-3.1-8b); do \
	    $(BIN)/foreshard plan "$$scenario" --curve --pictures \
	        --out "reports/gallery/$$(basename "$$scenario" .toml)"; \
	done

measure-here: $(STAMPS)/foreshard $(TORCH_STAMP)
	mkdir -p reports
	$(BIN)/foreshard measure --device cpu --minutes 4 --out reports/measurements.json

HERE ?=
calibrate-here: $(STAMPS)/foreshard $(TORCH_STAMP)
	$(BIN)/foreshard calibrate-here $(HERE)

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find simulator tests kernels -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: one stamp file for each thing installed --------------------------------------

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is missing or older than 3.11: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

# These two stamps are copies of the pyproject.toml that was installed: a file that is only newer
# installs nothing. Without build isolation pip asks the network for nothing that is there.
# constraints.txt has the versions of the last run that was green.
INSTALL := $(PIP_INSTALL) hatchling && $(PIP_INSTALL) --no-build-isolation -c constraints.txt --editable

$(STAMPS)/foreshard: pyproject.toml $(STAMPS)/venv
	cmp -s pyproject.toml $@ || { $(INSTALL) .; }
	@cp pyproject.toml $@

# Machine code of the engine of events and of longest paths: once for a checkout, with nothing but numba.
# Its digest is of these files (the simulator looks at it, not at times).
$(STAMPS)/compiled: workshop/ahead_of_time.py $(wildcard simulator/events/*/*.py) simulator/compiled.py \
    simulator/cost/pipeline/longest.py simulator/reliability/run_terms.py simulator/schedules/schedule.py \
    $(STAMPS)/foreshard
	@echo "compiling what plays schedules, once for this checkout"
	@$(BIN)/python -m workshop.ahead_of_time
	@touch $@

# Bytecode of every test and module, once for a checkout: each process that runs tests would make all of it.
$(STAMPS)/collected: $(STAMPS)/test
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true  # what is wrong, the tests say
	@touch $@

$(STAMPS)/test: pyproject.toml $(STAMPS)/venv
	cmp -s pyproject.toml $@ || { $(INSTALL) '.[test,lint]'; }
	@cp pyproject.toml $@
	@cp pyproject.toml $(STAMPS)/foreshard

$(TORCH_STAMP): $(STAMPS)/venv
	$(PIP_INSTALL) $(TORCH_INDEX) '$(TORCH)'
	@touch '$@'

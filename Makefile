# Everything starts here: `make demo` and `make test` need Python 3.11+ and make, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev  # of pyproject.toml, for contributors
PIP := $(BIN)/python -m pip
TORCH = import tomllib; print(*[d for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"] if d.startswith("torch")])
# uv takes a third of pip's time. Where it is not there or fails, or pip was told of an index that uv does not ask,
# pip installs. Neither compiles: a library is compiled when it is first imported. (A comma would end the argument.)
install = { ! $(PIP) config list | grep -qE '\.(index-url|no-index)=' && $(BIN)/uv pip install --quiet --python $(BIN)/python --editable $(1); } || $(PIP) install --quiet --no-compile --editable $(1)
COMPILE := $(BIN)/python -m compileall -q pate_fed party coordinator protocols  # as pip does with copies
COVERAGE :=  # --cov measures branch coverage, and holds its floor
SOURCES :=  # of benchmarks/numbers.py, for `make numbers`; all cheap ones
MUTANTS := --number 2  # of each module; --seed, --minutes: see --help
HIDDEN :=  # files or folders of tests; all. --suite, --timeout, --no-run: see --help
WAITING := 2  # of slow tests at once, beside the fast ones
NOW := $(shell date +%Y%m%d-%H%M%S)
DEMO_RUN := runs/demo-$(NOW)
FEDERATION_RUN := runs/federation-demo-$(NOW)

# What tests start is compiled once, not at every start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo federation-demo test test-slow test-exhaustive collect mutants hidden-rules numbers pictures renderings lock docs bench lint format types imports check clean

demo: $(VENV)/.installed  ## install and run a whole federation on bundled data
	$(BIN)/pate-fed simulate --out $(DEMO_RUN)

federation-demo: $(VENV)/.installed  ## coordinator and hospitals as processes over TLS on loopback
	$(BIN)/pate-fed demo --out $(FEDERATION_RUN)

test: $(VENV)/.installed-dev  ## install and run the tests
	$(BIN)/python -m pytest -n auto --dist worksteal --timeout 600 --timeout-method signal --durations 20 $(COVERAGE) -m "not slow and not exhaustive"

test-slow: $(VENV)/.installed-dev  ## run the tests that take longer
	$(BIN)/python -m pytest -n $(WAITING) --dist loadfile --no-loadscope-reorder --timeout 900 --timeout-method thread --durations 20 -m "slow and not exhaustive"

test-exhaustive: $(VENV)/.installed-dev  ## run every test that is too long for each change
	$(BIN)/python -m pytest -n auto --dist loadfile --durations 20 -m exhaustive

collect: $(VENV)/.installed-dev  ## load every test, and compile what tests load, once
	$(BIN)/python -m pytest --collect-only -qq -m "not exhaustive" >/dev/null

mutants: $(VENV)/.installed-dev  ## put small faults into the code, one at a time; a test must fail for each
	$(call install,'.[mutants]')
	$(BIN)/python -m tests.mutants $(MUTANTS)

hidden-rules: $(VENV)/.installed-dev  ## what only exhaustive tests reach must be nothing: runs all tests, hours
	$(BIN)/python -m tests.hidden_rules $(HIDDEN)

numbers: $(VENV)/.installed-dev  ## run the documentation's cheap commands; renew docs/numbers.json and the pages
	$(BIN)/python -m benchmarks.numbers $(SOURCES)

pictures: $(VENV)/.installed-dev  ## the readme's pictures anew: a simulation, and the federation demo's console
	$(BIN)/python -m tests.support.pictures

renderings: $(VENV)/.installed-dev  ## write the wording of pages, reports and commands anew; read the diff
	PATE_FED_RENEW_RENDERINGS=1 $(BIN)/python -m pytest -q tests/test_renderings.py tests/test_vectors_runs.py tests/test_pate_fed/test_report_plan_words.py

lock: $(VENV)/.installed-dev  ## renew the list of libraries with their hashes
	$(BIN)/python -m benchmarks.lock

docs: $(BIN)/mkdocs  ## build the documentation, with the reference of the Python API, into build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev  ## run every benchmark; one JSON object of bars each
	$(BIN)/python -m benchmarks.secure_sum --format json
	$(BIN)/python -m benchmarks.verified_votes --format json
	$(BIN)/python -m benchmarks.accounting --format json
	$(BIN)/python -m benchmarks.noise --format json
	test -z "$$PATE_FED_TEST_DATA" || $(BIN)/python -m benchmarks.audit --data-dir "$$PATE_FED_TEST_DATA/data" --format json
	$(BIN)/python -m benchmarks.deployment --format json

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/.installed-dev
	$(BIN)/mypy --num-workers 2

imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports

check: lint types imports test  ## all that a change must pass

clean:
	rm -rf $(VENV) build/docs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed")'
	$(PYTHON) -m venv $(VENV)

# pip brings torch: it may know of a build that uv does not, like one for machines without a GPU.
$(VENV)/.torch: $(VENV)/bin/python pyproject.toml
	$(PIP) install --quiet --no-compile "$$($(BIN)/python -c '$(TORCH)')"
	-$(PIP) install --quiet uv
	touch $@

$(VENV)/.installed: $(VENV)/.torch
	$(call install,.)
	$(COMPILE)
	touch $@

$(BIN)/mkdocs: | $(VENV)/.installed-dev
	test -x $@ || $(call install,'.[docs]')

$(VENV)/.installed-dev: $(VENV)/.torch
	$(call install,'.[$(strip $(EXTRAS))]')
	$(COMPILE)
	touch $(VENV)/.installed $@

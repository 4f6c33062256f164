# `make help` lists the targets. Everything happens in .venv, which is made anew when pyproject.toml changes.
# Nothing here needs a path without spaces: targets and prerequisites are relative.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
SOURCES := pyproject.toml README.md LICENSE $(shell find launcher policy docs systemd -type f -not -path '*/__pycache__/*')

# Two workers at least: a part of the suite's time is waiting for processes. With three on two processors some wait too long.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 2 ? 2 : n > 8 ? 8 : n)))
# One file, or a -k expression: make test ARGS='tests/unit -k wheel'
ARGS ?=

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

.PHONY: demo
demo: $(VENV)/.installed ## install Paddock in .venv and show what a jail allows and denies
	@PATH="$$PWD/$(BIN):$$PATH" ./demo.sh

.PHONY: test
test: $(VENV)/.tools ## run all tests: units, structure, types and style, and the real kernel
	@$(BIN)/python -m tests.support.suite --numprocesses $(WORKERS) --dist worksteal --quiet $(ARGS)

.PHONY: agents
agents: $(VENV)/.tools ## install the real agents that tests/agents drives (npm, PyPI, 2 GB)
	@$(BIN)/python -m tests.support.agent_packages

.PHONY: recording
recording: $(VENV)/.installed $(VENV)/.tools ## run the session on the front page, and draw it anew
	@$(BIN)/python -m tests.support.recording

.PHONY: site
site: $(VENV)/.tools ## build the manual as a website in build/site
	@$(BIN)/python -m tests.support.site build/site

.PHONY: lint
lint: $(VENV)/.tools ## style, types and directions of imports alone (part of `make test`)
	@$(BIN)/python -m pytest --quiet tests/unit/test_structure.py

.PHONY: format
format: $(VENV)/.tools ## rewrite the sources in the agreed style
	@$(BIN)/python -m ruff check --fix --quiet .
	$(BIN)/python -m ruff format --quiet .

.PHONY: bench
bench: $(VENV)/.tools ## compare start-up times, as ratios
	@$(BIN)/python -m tests.bench.bench_launch
	$(BIN)/python -m tests.bench.bench_service

.PHONY: clean
clean: ## remove .venv and everything else that can be made again
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python >= 3.11 that every user can execute comes first: jails are also started by ordinary users, and root's own
# interpreters often lie in root's home. PYTHON=/path/to/python3 overrides.
$(VENV)/.made: pyproject.toml
	@find_python() {
	    local candidate
	    if [[ -n "$${PYTHON:-}" ]]; then echo "$$PYTHON"; return; fi
	    for candidate in /usr/bin/python3 /usr/local/bin/python3 /usr/{,local/}bin/python3.{20..11} \
	                     python3 python3.{20..11}; do
	        candidate=$$(command -v "$$candidate") || continue
	        "$$candidate" -I -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
	        echo "$$candidate"; return
	    done
	    echo "no Python >= 3.11 with venv found; install python3 and python3-venv, or set PYTHON=" >&2
	    return 1
	}
	python=$$(find_python)
	echo "making $(VENV) with $$python"
	rm -rf $(VENV)
	"$$python" -I -m venv $(VENV)
	touch $@

$(VENV)/.tools: $(VENV)/.made
	@echo "installing the tools of the tests"
	read -r -d '' program <<-'END' || true
	import tomllib
	project = tomllib.load(open("pyproject.toml", "rb"))["project"]
	print(*project["dependencies"], *(line for extra in ("test", "docs") for line in project["optional-dependencies"][extra]), sep="\n")
	END
	$(BIN)/python -c "$$program" >$(VENV)/requirements.txt
	$(PIP) install --requirement $(VENV)/requirements.txt
	touch $@

$(VENV)/.installed: $(VENV)/.made $(SOURCES)
	@echo "installing paddock"
	$(PIP) install --force-reinstall --no-deps .
	$(PIP) install .
	touch $@

.PHONY: docs
docs: $(VENV)/.tools ## write the tables in docs/ and the man pages from the programme's own tables
	@$(BIN)/python -m tests.support.man_pages

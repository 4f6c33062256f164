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

# Twice as many as processors: a third of a test is waiting for processes.
WORKERS ?= $(shell n=$$((2 * $$(nproc))); echo $$((n > 12 ? 12 : n)))
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
bench: $(VENV)/.tools ## compare with what does less, as ratios, and write docs/benchmarks.md
	@$(BIN)/python -m tests.bench $(ARGS)

# Files are as old as the last commit, so that the same commit gives the same bytes. Of no other target: pip would
# compile modules in a form that is checked by its content, which takes a launch twice as long.
dist deb: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1)
BUILD ?= build
# Of the bill of materials, by its own maker: --no-validate saves 4 seconds where the same was validated before.
VALIDATION ?= --validate

.PHONY: dist
dist: $(VENV)/.tools ## build wheel, sdist and bill of materials, with their digests, in build/dist
	@rm -rf $(BUILD)/dist
	$(BIN)/python -I -m hatchling build -t wheel -t sdist -d $(BUILD)/dist >/dev/null 2>&1
	$(BIN)/python -W ignore $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	    $(VALIDATION) --output-file $(BUILD)/dist/paddock.cdx.json packaging/requirements.txt
	cd $(BUILD)/dist
	sha256sum -- *.* >SHA256SUMS
	echo "$(BUILD)/dist:" *

# For this machine's release and its Python: what was compiled for one fits no other.
.PHONY: deb
deb: dist ## build the Debian package, in build/dist
	@rm -rf $(BUILD)/deb
	mkdir -p $(BUILD)/deb/paddock/wheels
	cp -r packaging/debian CHANGELOG.md $(BUILD)/deb/paddock/
	cp $(BUILD)/dist/*.whl $(BUILD)/deb/paddock/wheels/
	$(PIP) download --require-hashes --only-binary :all: --dest $(BUILD)/deb/paddock/wheels \
	    --python-version "$$(/usr/bin/python3 -c 'import sys; print("{}.{}".format(*sys.version_info))')" \
	    --requirement packaging/requirements.txt
	version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)+$$(. /etc/os-release; echo "$$ID$$VERSION_ID")
	cd $(BUILD)/deb/paddock
	printf 'paddock (%s) stable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s  %s\n' "$$version" \
	    "$$(sed -n 's/^Maintainer: //p' debian/control)" \
	    "$$(LC_ALL=C date --utc --rfc-email --date="@$$SOURCE_DATE_EPOCH")" >debian/changelog
	dpkg-buildpackage --build=binary --no-sign >../log 2>&1 || { cat ../log >&2; exit 1; }
	cd ../../dist
	cp ../deb/*.deb .
	sha256sum -- *.* >SHA256SUMS
	echo "$(BUILD)/dist:" *.deb

.PHONY: lock
lock: $(VENV)/.made ## write packaging/requirements.txt anew: what the Debian package has with it
	@$(PIP) install uv
	sed -n 1p packaging/requirements.txt >$(VENV)/lock
	$(BIN)/uv pip compile pyproject.toml --quiet --generate-hashes --no-annotate --no-header --no-emit-index-url \
	    --upgrade --python-version 3.11 --python-platform linux >>$(VENV)/lock
	mv $(VENV)/lock packaging/requirements.txt

.PHONY: scoreboard
scoreboard: $(VENV)/.tools ## attack and measure other sandboxes beside Paddock's, and write docs/scoreboard.md anew
	@$(BIN)/python -m tests.bench.scoreboard $(ARGS)

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
	@echo "installing the tools of tests and builds"
	read -r -d '' program <<-'END' || true
	import tomllib
	project = tomllib.load(open("pyproject.toml", "rb"))["project"]
	print(*project["dependencies"], *(line for extra in ("test", "docs") for line in project["optional-dependencies"][extra]), sep="\n")
	END
	$(BIN)/python -c "$$program" >$(VENV)/requirements.txt
	# uv takes 6 seconds where pip takes 30; but what it is told of indexes and certificates is not all that pip is told.
	index=$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null || true)}
	$(PIP) install uv && VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode \
	    $${index:+--default-index "$$index"} --requirement $(VENV)/requirements.txt 2>/dev/null ||
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

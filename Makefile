# Two commands from a fresh clone: `make demo` and `make test`. Each makes .venv and installs what it needs, once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
SECONDS_EACH ?= 600
RUN := $(VENV)/bin
PIP = $(RUN)/python -m pip install -qq --no-compile --disable-pip-version-check
KERNELS := $(wildcard kernels/cpu/*)

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench sanitize notebooks docs clean
# Stamps are kept: installed-X says that the extra X is installed.
.SECONDARY:

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/installed-viz ## train four models of generated words, print their errors, draw demo.png
	$(RUN)/structlearn demo

test: $(VENV)/installed-dev ## all tests; those marked corpus read the folder STRUCTLEARN_DATA, by default ../shared/data
	$(RUN)/python -m pytest -q -n 2 --dist worksteal $(ARGS)

lint: $(VENV)/installed-dev ## ruff (lint and format) and mypy
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

bench: $(VENV)/installed-bench ## measure the chain beside its peers; ARGS=--help shows the options
	$(RUN)/python -m benchmarks.chain $(ARGS)

sanitize: $(VENV)/installed-dev ## the kernels under AddressSanitizer, UBSan and ThreadSanitizer; SECONDS_EACH=600 of random calls
	PYTHON=$(abspath $(RUN)/python) .ci/sanitize $(SECONDS_EACH) $(SEED)

notebooks: $(VENV)/installed-dev ## run the notebooks and store what they print and draw; ARGS=laso runs one
	$(RUN)/python notebooks/run.py $(ARGS)

docs: $(VENV)/installed-docs ## build the site into site/, strictly; ARGS="-d FOLDER" builds it elsewhere
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict -q -f docs/mkdocs/mkdocs.yml $(ARGS)

clean: ## remove the environment and what was built
	rm -rf $(VENV) build dist site

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "structlearn needs Python >= 3.11, this is " + sys.version.split()[0] + "; set PYTHON=...")'
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# Build tools stay in the environment: in pip's throw-away one every install would compile every kernel again.
$(VENV)/build-tools: | $(VENV)/bin/python
	@echo "installing build tools"
	@$(PIP) scikit-build-core cmake ninja
	@touch $@

# Editable, so Python files need no reinstall; kernels are compiled again when their sources change. torch comes first:
# one small library is compiled for the release that is there.
$(VENV)/installed-%: pyproject.toml constraints.txt $(KERNELS) | $(VENV)/build-tools
	@echo "installing torch"
	@$(PIP) -c constraints.txt torch
	@echo "compiling the kernels, and installing what structlearn[$*] needs"
	@$(RUN)/python .ci/needs.py $* > $(VENV)/needs-$*.txt
	@$(PIP) --no-build-isolation --no-deps -e . & compiling=$$!; \
	 $(PIP) -c constraints.txt -r $(VENV)/needs-$*.txt; installed=$$?; wait $$compiling && exit $$installed
	@$(PIP) -c constraints.txt "structlearn[$*]"
	@touch $@

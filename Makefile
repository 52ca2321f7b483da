# make run: the page.   make test: all checks that need no torch.   make verify: checks against the real torch.
# make measure: real training steps on this machine's GPU. make calibrate: its pace.
#
# Each target sets up the environment that it needs once (.venv, .venv-verify, .venv-gpu). Nothing is installed outside
# this folder except Debian's chromium, if make runs as root.

PYTHON ?= python3
ADDRESS ?= localhost
PORT ?=

VENV := .venv
VERIFY := .venv-verify
GPU := .venv-gpu
LOCK := .venv-lock
UV := 0.13.9
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
PAGE := $(VENV)/page.stamp
DEV := $(VENV)/dev.stamp
TORCH := $(VERIFY)/torch.stamp
PARSERS := .venv-parsers
PARSED := $(PARSERS)/parsers.stamp
CUDA := $(GPU)/cuda.stamp
NULL := .venv-null
NULL_SOURCES := estimator/rehearse/on_path/headroom_inside
PLAYED := $(NULL)/null.stamp
TRITON := $(NULL)/triton

.DEFAULT_GOAL := help
.PHONY: help run lock audit setup test lint types imports pytest chromium verify bench corpus mutate played rehearsed measure calibrate docs format hooks clean

help:
	@echo "make run      set up and serve the page (PORT=8600 and ADDRESS=0.0.0.0 change where)"
	@echo "make test     set up and run lint, types, import contracts and all tests that do not need torch"
	@echo "make verify   set up torch 2.13.0 and check parameters, dtypes and the steps of 200 random setups (SETUPS=40: of"
	@echo "              40; SEED=: others than this week's) against the real libraries; and torch's CUDA build on a card that is"
	@echo "              not there, on which ten public scripts are rehearsed (a gigabyte more, and g++)"
	@echo "make bench    time one estimate, a million needs, and the page's response to each slider"
	@echo "make mutate   change 20 lines of each folder one by one and print which no test notices (hours; ARGS=estimator/time)"
	@echo "make corpus   ask all 5,000 frozen setups again (ARGS=\"against HEAD~1\": print each value that differs from then)"
	@echo "make lock     write requirements.lock from requirements.txt (UPGRADE=1: with the newest versions it allows)"
	@echo "make audit    list the page's packages with licence and size, and which pins are behind"
	@echo "make played   set up torch's CUDA build on a card that is not there and play data/played.csv (ARGS=lora: those cases)"
	@echo "make rehearsed  set up the same and rehearse scripts there, as headroom rehearse does (ARGS=sft.py: those scripts)"
	@echo "make measure  set up torch for CUDA and measure training steps on this GPU (ARGS=--compare only compares)"
	@echo "make calibrate  set up the same and find this GPU's pace in three minutes: pace.json narrows its estimates"
	@echo "make docs     regenerate docs/formulas.md, the accuracy tables, docs/refusals.md and docs/rules_of_thumb.md"
	@echo "make format   let ruff sort imports and format the code"
	@echo "make hooks    run the linters before each commit"
	@echo "make clean    remove the environments and caches"

# --- environments -------------------------------------------------------------------------------

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Headroom needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VERIFY)/bin/python:
	@$(PYTHON) -m venv $(VERIFY)

$(PAGE): requirements.lock deploy/slim.py | $(VENV)/bin/python
	@echo "Setting up $(VENV) from requirements.lock (once; about a minute)"
	@$(VENV)/bin/python $(PIP_INSTALL) --require-hashes --only-binary :all: -r requirements.lock
	@echo "Left of it without what the page never loads: $$($(VENV)/bin/python deploy/slim.py $(VENV))"
	@touch $@

$(DEV): requirements-dev.txt $(PAGE)
	@echo "Setting up the tools of requirements-dev.txt (once)"
	@$(VENV)/bin/python $(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

# torch first and alone, so that no other package can select another build of it.
$(TORCH): requirements-verify.txt | $(VERIFY)/bin/python
	@echo "Setting up $(VERIFY) with torch 2.13.0 (once; a few minutes)"
	@$(VERIFY)/bin/python $(PIP_INSTALL) torch==2.13.0
	@$(VERIFY)/bin/python $(PIP_INSTALL) -r requirements-verify.txt
	@touch $@

# The tools' own parsers, beside the others and without what they pin (about half a minute, 70 MB).
$(PARSED): requirements-parsers.txt $(TORCH)
	@rm -rf $(PARSERS)
	@DS_BUILD_OPS=0 $(VERIFY)/bin/python $(PIP_INSTALL) --no-deps --target $(PARSERS) -r requirements-parsers.txt
	@touch $@

$(CUDA): requirements-gpu.txt
	@command -v nvidia-smi >/dev/null || \
	    { echo "make measure needs an NVIDIA GPU, and nvidia-smi finds no driver here; nothing was installed."; exit 1; }
	@test -x $(GPU)/bin/python || $(PYTHON) -m venv $(GPU)
	@echo "Setting up $(GPU) with torch for CUDA (once; several gigabytes)"
	@$(GPU)/bin/python $(PIP_INSTALL) -r requirements-gpu.txt
	@touch $@

# PyTorch's CUDA build without NVIDIA's libraries, and in their place one that does nothing (a gigabyte; needs g++).
$(PLAYED): requirements-null.txt $(NULL_SOURCES)/build.py $(NULL_SOURCES)/null.cpp
	@test -x $(NULL)/bin/python || $(PYTHON) -m venv $(NULL)
	@echo "Setting up $(NULL) with torch's CUDA build (once; some minutes)"
	@$(NULL)/bin/python $(PIP_INSTALL) --no-deps -r requirements-null.txt
	@$(NULL)/bin/python $(NULL_SOURCES)/build.py $(NULL)/lib/python3*/site-packages $(NULL)/cuda
	@touch $@

# Triton, which PyTorch's CUDA build brings, lies apart: the runs of `make played` go without.
$(TRITON): | $(PLAYED)
	@$(NULL)/bin/python $(PIP_INSTALL) --no-deps --target $@ triton==3.7.1

setup: $(DEV)

# --- what the page stands on --------------------------------------------------------------------

lock:
	@test -x $(LOCK)/bin/uv || { $(PYTHON) -m venv $(LOCK) && $(LOCK)/bin/python $(PIP_INSTALL) uv==$(UV); }
	@$(LOCK)/bin/uv pip compile requirements.txt --universal --python-version 3.11 --generate-hashes \
	    --no-header --quiet --output-file requirements.lock $(if $(UPGRADE),--upgrade)
	@{ echo "# Every package that the page runs on, with hashes, for Python 3.11 to 3.14 on every platform: written by"; \
	   echo "# \`make lock\` from requirements.txt, installed by \`make run\` and by the image."; cat requirements.lock; } > .lock && mv .lock requirements.lock

audit: $(PAGE)
	@$(VENV)/bin/python deploy/audit.py

# --- the page -----------------------------------------------------------------------------------

run: $(PAGE)
	@$(VENV)/bin/python -m streamlit run serve.py --server.address $(ADDRESS) \
	    $(if $(PORT),--server.port $(PORT))

# --- checks -------------------------------------------------------------------------------------

test: lint types imports pytest

lint: $(DEV)
	@echo "== ruff"
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

types: $(DEV)
	@echo "== mypy --strict"
	@$(VENV)/bin/python -m mypy

imports: $(DEV)
	@echo "== import contracts"
	@$(VENV)/bin/lint-imports --no-logo 2>&1

pytest: $(DEV) chromium
	@echo "== pytest"
	@PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

chromium:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Debian's chromium for the browser tests (once)"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	      apt-get install -y -qq --no-install-recommends chromium fonts-liberation; } >/dev/null || \
	    { echo "Chromium could not be installed, so the browser tests cannot run."; [ -z "$${CI:-}" ]; }; \
	else \
	    echo "Chromium is not installed and only root may install it (apt-get install chromium):" \
	         "the browser tests are skipped."; \
	fi

# PLAYS=0: without the rehearsals, which need PyTorch's CUDA build, 3 GB more
verify: $(TORCH) $(PARSED) $(if $(filter 0,$(PLAYS)),,$(PLAYED) $(TRITON))
	@echo "== pytest against the real torch, transformers, peft and accelerate"
	@$(VERIFY)/bin/python -m pytest tests/verify
ifneq ($(PLAYS),0)
	@echo "== ten public scripts, rehearsed on a card that is not there"
	@PYTHONPATH=$(CURDIR)/$(TRITON) $(VERIFY)/bin/python -m tests.verify.null.ten $(CURDIR)/$(NULL)/bin/python
endif

bench: $(DEV) chromium
	@PYTHONPATH=. $(VENV)/bin/python benchmarks/bench_estimate.py
	@PYTHONPATH=. $(VENV)/bin/python benchmarks/bench_grid.py
	@PYTHONPATH=. $(VENV)/bin/python benchmarks/bench_plan.py
	@if command -v chromium >/dev/null; then PYTHONPATH=. $(VENV)/bin/python benchmarks/bench_slider.py; fi

corpus: $(DEV)
	@$(VENV)/bin/python -m tests.corpus $(or $(ARGS),check)

mutate: $(DEV)
	@$(VENV)/bin/python benchmarks/mutate.py $(ARGS)

# --- measurements -------------------------------------------------------------------------------

played: $(PLAYED)
	@LD_LIBRARY_PATH=$(CURDIR)/$(NULL)/cuda $(NULL)/bin/python -W ignore -m tests.verify.null.played $(ARGS)

rehearsed: $(PLAYED) $(TRITON) $(DEV)
	@PYTHONPATH=$(CURDIR)/$(TRITON) $(VENV)/bin/python -m tests.verify.null.rehearsed $(CURDIR)/$(NULL)/bin/python $(ARGS)

measure: $(CUDA)
	@$(GPU)/bin/python benchmarks/measure_gpu.py $(ARGS)

calibrate: $(CUDA)
	@$(GPU)/bin/python benchmarks/calibrate.py $(ARGS)

# --- upkeep -------------------------------------------------------------------------------------

docs: $(DEV)
	@$(VENV)/bin/python docs/generate_formulas.py
	@$(VENV)/bin/python docs/generate_accuracy.py
	@$(VENV)/bin/python docs/generate_refusals.py
	@$(VENV)/bin/python docs/generate_rules_of_thumb.py

format: $(DEV)
	@$(VENV)/bin/ruff check --fix-only --quiet .
	@$(VENV)/bin/ruff format .

hooks: $(DEV)
	@$(VENV)/bin/pre-commit install

clean:
	rm -rf $(VENV) $(VERIFY) $(PARSERS) $(GPU) $(NULL) $(LOCK) \
	    .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

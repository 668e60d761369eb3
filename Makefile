# The verbs of this repository; `make help` lists them. Needs python3 (3.11 or newer) with venv, and make.
#
#   PORT=8080         port of `make serve`
#   PYTHON=python3    interpreter that makes .venv
#   PIP_ARGS=         more arguments for pip, for example an index with CPU builds of torch
#   ARGS=             more arguments for the verb's own command: make test ARGS='tests/cache -x'

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PORT ?= 8080
PIP_ARGS ?=
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed
OURS := gateway engine policies tests bench examples tools hatch_build.py
NATIVE := hatch_build.py $(wildcard engine/native/src/*)

.PHONY: help venv model serve demo test long check docs fmt bench soak gpu-check ci

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(INSTALLED): pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; set PYTHON=")'
	@test -x $(BIN)/pip || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing (the first time this downloads torch)"
	@$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[engine,redis,encrypt,dev]'
	@touch $@

venv: $(INSTALLED) ## make .venv and install everything in it
	@:

model: $(INSTALLED) ## bring the default model into $PCG_HOME (~/.cache/pcg)
	@$(BIN)/pcg model fetch >/dev/null

serve: model ## start the gateway on 127.0.0.1:$PORT
	@exec $(BIN)/pcg serve --port $(PORT) $(ARGS)

demo: model ## a cold and a warm conversation through both official SDKs, with the bill
	@exec $(BIN)/python -m examples.demo $(ARGS)

test: model ## run the tests, but for the long ones
	@$(BIN)/python -m pytest -m 'not long' $(ARGS)

long: model ## run the long tests alone, as the last stage of CI does
	@$(BIN)/python -m pytest -m long $(ARGS)

check: $(INSTALLED) ## lint, formatting and types; then the largest files, functions and signatures
	@$(BIN)/ruff check $(OURS)
	@$(BIN)/ruff format --check $(OURS)
	@$(BIN)/mypy
	@$(BIN)/mypy -p tools -p bench -p examples
	@$(BIN)/python -m tools.largest

docs: $(INSTALLED) ## write the generated parts of docs/policy.md and docs/metrics.md
	@$(BIN)/python -m tools.reference

fmt: $(INSTALLED) ## format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix $(OURS)
	@$(BIN)/ruff format $(OURS)

bench: model ## measure the default model in sections, six minutes; ARGS='--only lengths tiers --json FILE'
	@exec $(BIN)/python -m bench.run $(ARGS)

soak: model ## 500 turns of 20 conversations over tiny tiers against the uncached run; ARGS='--turns N'
	@exec $(BIN)/python -m bench.soak $(ARGS)

gpu-check: $(INSTALLED) ## the checks that need a CUDA device, in under five minutes; skips without one
	@exec $(BIN)/python -m bench.gpu_check $(ARGS)

ci: ## what continuous integration runs
	@exec .ci/run $(ARGS)

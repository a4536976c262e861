# make learn   open the screens: the tiny policy, the whole ScaleRL recipe, its scaling curve, live
# make test    lint, type-check and test everything
# make setup   only install, into .venv
# make cluster install vLLM (for CPUs), Ray and this project into .venv-cluster: what cluster sites need
# make test-cluster  test the backend there: real engines, real trainers, real pushes
# make parity  one recipe in both worlds: gradients and curves, three seeds each (a quarter of an hour)
# make bench-backend  pauses and throughput of the engines, memory and speed of the trainer's log-probs
# make invariants  every invariant of our own code, with ten times the examples (about ten minutes)
# make mutants faulty versions of our code: does an invariant notice each? (about half an hour)
# make calibration  how often the intervals of a fit hold on simulated runs (about a quarter of an hour)
# make published    the paper's curves under our fit
# make figures      the figures of docs/forecasting.md
# make bench        speed: fits, pictures, generation and update, runs side by side, and against TRL (ten minutes; installs TRL)
# make pilots       what the tiny world can show of the paper: every setting, every seed (an hour)
# make bench-tui    keys, start, attaching and replaying beside a run at full speed (four minutes)
# make e2e          the screens in a real terminal and a real browser (needs tmux and Chromium)
# make glossary     docs/metrics.md from the glossary;  make recordings: the bundled runs;  make screens: pictures of the screens
# make simulate   the loop under seeded faults, ten thousand runs of it (ten minutes)
# make crashtest  runs killed with SIGKILL two hundred times, and taken up again (a quarter of an hour)
# make bench-verify  the verifier: throughput beside hostile answers, and processes left over
# make audit      the dependencies: known vulnerabilities, licences, pins
# make curve   the default run on seeds 0 to 7, scored (about five minutes on two cores)

PYTHON ?= python3
TORCH_INDEX ?=# a package index with another build of torch, e.g. for your CUDA version
VENV := .venv
BIN := $(VENV)/bin
CLUSTER := .venv-cluster
BENCH := .venv-bench
# The constraint reaches the build tool too, through the environment.
PIP := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: learn test setup cluster test-cluster parity bench-backend invariants mutants calibration published figures curve bench pilots bench-tui e2e glossary \
	simulate crashtest bench-verify audit recordings screens clean another-torch

learn: $(VENV)/ready
	@$(BIN)/scalerl

test: $(VENV)/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/pytest --cov --cov-fail-under=95

setup: $(VENV)/ready-test

cluster: $(CLUSTER)/ready

test-cluster: $(CLUSTER)/ready
	$(CLUSTER)/bin/pytest tests/cluster

parity: $(CLUSTER)/ready
	PYTHONPATH=tests/support $(CLUSTER)/bin/python tests/benchmarks/parity.py --write

bench-backend: $(CLUSTER)/ready
	PYTHONPATH=tests/support $(CLUSTER)/bin/python tests/benchmarks/bench_backend.py

invariants: $(VENV)/ready-test
	$(BIN)/pytest tests/invariants --hypothesis-profile=thorough

mutants: $(VENV)/ready-test
	$(BIN)/python tests/mutants/mutate.py --write

curve: $(VENV)/ready
	$(BIN)/python tests/benchmarks/curve.py

simulate: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/scalerl simulate --seeds 10000

crashtest: $(VENV)/ready-test
	PYTHONPATH=tests/support $(BIN)/python tests/crash/crashtest.py

bench-verify: $(VENV)/ready-test
	PYTHONPATH=tests/support $(BIN)/python tests/benchmarks/bench_verify.py

# Exit status 3: the index or the database of vulnerabilities could not be asked, so nothing is known of them.
audit: $(VENV)/ready-test
	@$(PYTHON) -m venv .venv-audit && .venv-audit/bin/python -m pip --disable-pip-version-check install --quiet pip-audit
	$(BIN)/python tests/benchmarks/audit.py --tool .venv-audit/bin/pip-audit

calibration: $(VENV)/ready-test
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/calibration.py --write

published: $(VENV)/ready-test
	PYTHONPATH=tests/support $(BIN)/python tests/benchmarks/published.py --write

LONG_RUN := paper:Fig1a/ScaleRL-bs2048-100k
figures: $(VENV)/ready-test
	$(BIN)/scalerl fit $(LONG_RUN) --window :39000 --at 101959 --plot docs/figures/long-run.svg > /dev/null
	$(BIN)/scalerl fit $(LONG_RUN) --window :17000 --at 101959 --plot docs/figures/too-early.svg > /dev/null
	$(BIN)/scalerl fit paper:Fig2/DeepSeek-GRPO --window :6600 --plot docs/figures/broken.svg > /dev/null
	$(BIN)/scalerl compare paper:Fig2/ScaleRL $(LONG_RUN) --plot docs/figures/two-recipes.svg > /dev/null

bench: $(VENV)/ready-test $(BENCH)/ready
	$(BIN)/python tests/benchmarks/bench_fit.py
	$(BIN)/python tests/benchmarks/bench_raster.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/bench_speed.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/bench_jobs.py
	OMP_NUM_THREADS=1 $(BENCH)/bin/python tests/benchmarks/bench_trl.py

pilots: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/pilots.py --write

bench-tui: $(VENV)/ready-test
	PYTHONPATH=tests/support $(BIN)/python tests/benchmarks/bench_tui.py

e2e: $(VENV)/ready-test
	@$(PIP) --editable '.[test,e2e]'
	@for tool in tmux chromium; do command -v $$tool > /dev/null || \
		if [ "$$(id -u)" = 0 ]; then apt-get install -y $$tool; \
		else echo "$$tool is needed: sudo apt-get install $$tool"; exit 2; fi || exit 2; done
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/e2e

glossary: $(VENV)/ready
	$(BIN)/python -c "from pathlib import Path; from scalerl.glossary import markdown; \
		Path('docs/metrics.md').write_text(markdown(), encoding='utf-8')"

RECORDED := tui/recordings
recordings: $(VENV)/ready
	rm -rf runs/recorded
	$(BIN)/scalerl run tiny --out runs/recorded/tiny > /dev/null
	$(BIN)/scalerl run tiny length.kind=none site.thinking_tokens=24 --out runs/recorded/truncated > /dev/null
	for name in tiny truncated; do gzip -9nc runs/recorded/$$name/events.jsonl > $(RECORDED)/$$name.jsonl.gz; done

screens: $(VENV)/ready-test
	PYTHONPATH=tests/support $(BIN)/python tests/benchmarks/screens.py

$(VENV)/ready: pyproject.toml constraints.txt $(if $(TORCH_INDEX),another-torch)
	@echo "installing into $(VENV) (once; the first time takes a minute or more)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(if $(TORCH_INDEX),$(PIP) --force-reinstall torch --index-url $(TORCH_INDEX))
	@$(PIP) --editable .
	@touch $@

$(VENV)/ready-test: $(VENV)/ready
	@$(PIP) --editable '.[test]'
	@touch $@

# vLLM's build for CPUs and its build for CUDA are one module: never both in an environment. With its torchvision and
# relatives, which are built for CUDA, vLLM cannot be imported.
$(CLUSTER)/ready: pyproject.toml constraints-cluster.txt
	@echo "installing vLLM and Ray into $(CLUSTER) (once; two or three minutes, 4 GB)"
	@$(PYTHON) -m venv $(CLUSTER)
	@PIP_CONSTRAINT=$(CURDIR)/constraints-cluster.txt $(CLUSTER)/bin/python -m pip --disable-pip-version-check \
		install --quiet --editable '.[test-cluster]'
	@$(CLUSTER)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# TRL's newest with the torch that everything else here was tested with.
$(BENCH)/ready: pyproject.toml constraints-bench.txt
	@echo "installing TRL into $(BENCH) (once; a minute)"
	@$(PYTHON) -m venv $(BENCH)
	@PIP_CONSTRAINT=$(CURDIR)/constraints-bench.txt $(BENCH)/bin/python -m pip --disable-pip-version-check \
		install --quiet --editable . trl
	@touch $@

another-torch:

clean:
	rm -rf $(VENV) $(CLUSTER) $(BENCH) .venv-audit build dist .pytest_cache .ruff_cache .hypothesis .coverage

# Two commands are all a newcomer needs: `make demo` and `make test`. Each sets up .venv itself when it is not there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Where the machine forbids bytecode (containers often do), each of the tests' many processes would compile all of
# torch again: so not here.
export PYTHONDONTWRITEBYTECODE :=

# What `make quick` tests: losses, measures, algorithms, settings, partitions, and the engine against the reference loop.
CORE := tests/losses tests/measures/test_asymmetry.py tests/measures/test_scores.py tests/algorithms tests/spec \
	tests/common/test_streams.py tests/data/test_partitions.py tests/engine/test_engine_equals_reference.py

.PHONY: demo quick test long fuzz federations check browser docs architecture methods format bench clean

demo: $(READY)  ## FedAvg against FedGA on digits that ship with scikit-learn: a table, and pictures in demo/
	$(BIN)/fedga run --out demo

quick: check  ## before every commit: check, and the tests of the core on small networks, in about a minute
	$(BIN)/python -m pytest -n 2 -k 'not resnet20 and not compiled' $(CORE)

test: check browser  ## everything CI runs
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

long: fuzz  ## the longest proofs, which `make test` leaves out: before a release
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long

fuzz: $(READY)  ## damage files of every kind, at random: make fuzz N=1000 (of each kind)
	FEDGA_FUZZ=$(or $(N),200) $(BIN)/python -m pytest tests/hostile/test_damage.py

federations: $(READY)  ## of `make long`: the pages of the documentation on which real servers and sites run
	$(BIN)/python -m pytest -m long tests/docs/test_long_pages.py

check: $(READY)  ## lint, formatting, types, and that imports between rooms go one way
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

# The report page is tried in a real browser. Without one, and without the right to install it, those tests are skipped.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
	then apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium >/dev/null; \
	else echo "no Chromium here: the tests of the report page in a browser will be skipped"; fi

docs: $(READY)  ## the documentation as a site, in site/: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

architecture: $(READY)  ## the picture of the rooms and their imports, in docs/pictures/
	$(BIN)/python tools/draw_architecture.py

methods: $(READY)  ## a page per algorithm from its declaration and results/related-digits, in docs/methods/
	$(BIN)/python tools/write_methods.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## rounds on this CPU against a plain PyTorch loop, Flower, pfl, FedJAX, fluke and FedLab
	$(BIN)/python benchmarks/cpu.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Made in place and marked ready only at the end, so that an interrupted set-up starts over. Bytecode is made on all
# cores, which pip does not do; some packages ship files that Python 3.11 cannot compile, and never imports.
$(READY): pyproject.toml constraints.txt
	rm -f $(READY)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true
	touch $(READY)

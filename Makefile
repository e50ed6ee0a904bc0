# Everything a contributor or a curious stranger runs. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs
BENCHES := bundle cube_build cube cube_switch serving serving_wire serving_hang serving_soak transfer release edge_delta edge_lab fleet cache
NATIVE := CMakeLists.txt $(wildcard native/* native/cube/*)

.DEFAULT_GOAL := help
.PHONY: help demo edge-demo test coverage kills kills-release soak-serving mutants seeds peers fuzz lint format bench docs diagrams lock clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment: made once, made again when what it is made of changes.
$(VENV)/ready: pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'this needs Python 3.11 or newer (cloudedge itself runs on 3.10); run: make PYTHON=python3.11 ...'; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing cloudedge and its tools into $(VENV) (once) ...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade -c constraints.txt 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --group dev --editable '.[bos,cache,docker,k8s,otel,paddle,pipeline,s3,serve,visualdl]'
	@touch $@

demo: $(VENV)/ready ## train, release, update, break and roll back a click model, under load; see out/ctr/report.html
	@$(BIN)/python -W 'ignore:No ccache found' examples/ctr/run.py

edge-demo: $(VENV)/ready ## train a detector, release it to three edge nodes, update it in waves; see out/yolov3/report.html
	@GLOG_minloglevel=2 $(BIN)/python -W ignore examples/yolov3/run.py

test: $(VENV)/ready ## run the tests; those that need a program that is not here are skipped and say so
	@CLOUDEDGE_TEST_TOOLS=$(CURDIR)/.peers $(BIN)/python -m pytest -n $$(($$(nproc) + 1)) $(ARGS)

coverage: $(VENV)/ready ## measure the package's coverage by tests that need no cluster; fails below the floor in pyproject.toml
	@rm -rf out/coverage && mkdir -p out/coverage
	@CLOUDEDGE_TEST_TOOLS=$(CURDIR)/.peers $(BIN)/coverage run -m pytest -n $$(($$(nproc) + 1)) -m 'not cluster' $(ARGS)
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet --fail-under 0
	@$(BIN)/coverage report --skip-covered && echo 'line by line: out/coverage/html/index.html'

kills: $(VENV)/ready ## deliver 50 times under load and kill deliveries and servers at 200 seeded moments
	@CLOUDEDGE_DELIVERIES=50 CLOUDEDGE_KILLS=200 $(BIN)/python -m pytest -n0 -s tests/cube/delivery/test_power.py

kills-release: $(VENV)/ready ## release under load; kill the release at every write of its journal, every server at every stage
	@CLOUDEDGE_TEST_EVERY=1 $(BIN)/python -m pytest -n0 -s tests/release/local/test_kills.py

soak-serving: $(VENV)/ready ## change versions 200 times under load, then ask three times too much for a minute
	@$(BIN)/python bench/serving_soak.py $(ARGS)

mutants: $(VENV)/ready ## remove every named guard in turn and see who notices; see out/mutants/report.md (ARGS='--guard NAME' for one)
	@$(BIN)/python -m tests.mutants $(ARGS)

seeds: $(VENV)/ready ## simulate SEEDS (default 1000000) seeds on all cores; stopped, it continues where it was
	@$(BIN)/python -m tests.testing.many_seeds --seeds $(or $(SEEDS),1000000)

peers: ## install what tests compare us with (Debian packages as root; with Go: cosign, oras, baetyl-cloud, paddle-operator; Paddle Serving)
	@tests/install_peers .peers

fuzz: $(VENV)/ready ## fuzz every parser of foreign bytes, FUZZ_SECONDS (default 10) each, and race the server
	@tests/fuzz/files/run $(or $(FUZZ_SECONDS),10)
	@tests/fuzz/net/run $(or $(FUZZ_SECONDS),10)
	@tests/fuzz/serving/run $(or $(FUZZ_SECONDS),10)
	@tests/tsan/run

lint: $(VENV)/ready ## check format, style, types and layers
	@$(BIN)/ruff format --check --quiet . || { echo 'run: make format'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/ready ## format the sources
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(VENV)/ready ## measure what the README claims, against peers, in one run; fails at the end if a bar was missed
	@missed=; for each in $(BENCHES); do $(BIN)/python bench/$$each.py || missed="$$missed $$each"; done; \
	  test -z "$$missed" || { echo "missed a bar:$$missed"; exit 1; }

# The site's tools have an environment of their own: they read the sources, and import neither cloudedge nor Paddle.
$(DOCS)/ready: pyproject.toml constraints.txt
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@echo 'installing the tools of the documentation into $(DOCS) (once) ...'
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade -c constraints.txt 'pip>=25.1'
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group docs
	@touch $@

docs: $(DOCS)/ready ## build the documentation site into out/site; broken links and anchors are errors
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict && echo 'open out/site/index.html'

diagrams: ## draw docs/diagrams/*.svg anew from their sources (needs graphviz)
	@for each in docs/diagrams/*.dot; do dot -Tsvg "$$each" -o "$${each%.dot}.svg"; done

lock: ## write constraints.txt anew from what installs today
	@rm -rf $(VENV)/lock && $(PYTHON) -m venv $(VENV)/lock
	@$(VENV)/lock/bin/pip install --quiet --upgrade pip && $(VENV)/lock/bin/pip install --quiet --group dev --group docs '.[bos,cache,docker,k8s,otel,paddle,pipeline,s3,serve,visualdl]'
	@$(VENV)/lock/bin/pip freeze --exclude cloudedge > constraints.txt && rm -rf $(VENV)/lock
	@cp constraints.txt dockerfiles/constraints.txt  # a build context reaches no file outside of it

clean: ## remove everything that was made
	rm -rf $(VENV) $(DOCS) build out dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

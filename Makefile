# Every target sets up what it needs in .venv, which depends on pyproject.toml alone.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
IMAGES ?=
WORKERS ?= 9
SECONDS ?= 600
SEED ?=
CALM ?=
EXAMPLES ?= 2000
BENCH ?=
ENGINE ?= sqlite
FORKY ?=
export FORKY

# The tests start a thousand processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

NEWEST = tests/web tests/store tests/processes tests/contrib tests/faults/test_worker_deaths.py tests/faults/test_supervisor_deaths.py
NEWEST += $(if $(FORKY),tests/unit tests/queue tests/cli tests/maintenance)

# What SQLite decides and no Python, and long.
NOT_NEWEST = $(addprefix --ignore=tests/store/sqlite/,test_adopt_anything.py test_adopt_shapes.py test_listing_cost.py test_query_plans.py)

.PHONY: install packages node reference dist demo demo-postgres test test-postgres test-models test-models-here newest newest-root newest-tests frameworks frameworks-tests coverage faults model deploy-test long long-postgres lint types soak bench bench-postgres bench-models screenshots clean

install: $(VENV)/.installed

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,proctitle]'
	touch $@

# onnxruntime, which runs the models, has no release for Python 3.15 yet.
$(VENV)/.installed-ml: pyproject.toml $(VENV)/.installed
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 15))'; then \
	  echo "make: onnxruntime has no release for this Python yet, so tests of models are skipped; the demo needs an older one"; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'; fi
	touch $@

# A browser and the like, for the tests that drive one; as root, with Debian's package manager.
packages:
	tests/packages.sh

# What the tests of clients/node need; without it they are skipped. `make test` itself downloads nothing for them.
node:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory clients/node/node_modules/.installed; \
	else echo "node: there is no npm here, so the tests of clients/node are skipped"; fi

clients/node/node_modules/.installed: clients/node/package-lock.json
	cd clients/node && npm ci --no-audit --no-fund
	touch $@

# The parts of the documents that are made from the code; tests say when they are not up to date.
reference: $(VENV)/.installed
	$(BIN)/python docs/keys.py
	$(BIN)/python -m docs.tables

# A wheel for other machines: dist/job_supervisor-VERSION-py3-none-any.whl.
dist: $(VENV)/.installed
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

demo: $(VENV)/.installed-ml
	$(BIN)/python examples/pictures/demo.py $(if $(IMAGES),--images "$(IMAGES)")

# The same on two hosts with a PostgreSQL server, one of which is killed on the way.
demo-postgres: $(VENV)/.installed-ml
	$(BIN)/python examples/pictures/several_hosts.py $(if $(IMAGES),--images "$(IMAGES)")

test: $(VENV)/.installed-ml
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not long and not server" tests

# The tests that use a PostgreSQL server, one of each kind; a server comes with `make install`.
test-postgres: $(VENV)/.installed-ml
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "server and not long and not on_postgres" tests

# The handlers whose models and libraries are too large for every installation, in an environment of their own: about
# 700 MB.
test-models:
	@$(MAKE) --no-print-directory test-models-here VENV=$(VENV)-models

test-models-here: $(VENV)/.installed-models
	$(BIN)/python -m pytest tests/handlers/test_embed.py tests/handlers/test_ocr.py tests/handlers/test_speech.py

$(VENV)/.installed-models: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embed,ocr,speech]'
	touch $@

# Admin, store, process and framework tests on the newest Python of the machine, if that is not the usual one. With
# FORKY=FOLDER on those of that Debian, too, and on all of them more tests.
newest: $(VENV)/.installed
	@echo "newest: on what is newer than $$($(BIN)/python -V)"
	@tests/newest.sh $(BIN)/python | while read -r python root; do \
	  echo "newest: $$python $$root"; \
	  $${root:+tests/newest_root.sh $$root} $(MAKE) --no-print-directory newest-tests PYTHON=$$python \
	    VENV=$(VENV)-$${python##*python} </dev/null || exit; done

# As root: a Debian with Python 3.14 and 3.15 in FORKY=FOLDER; debootstrap, mirrors, some minutes.
newest-root:
	tests/newest_root.sh $(FORKY)

newest-tests: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(NOT_NEWEST) $(NEWEST)

# Django's own tests of task backends, from its source, with ours: the package django-tasks on the usual Python, and
# Django 6 on the newest.
frameworks: $(VENV)/.django-source
	@$(MAKE) --no-print-directory frameworks-tests SOURCE=$(abspath $(VENV))/.django-source
	@newest=$$(FORKY= tests/newest.sh $(BIN)/python | head -n 1); \
	if [ -z "$$newest" ]; then echo "frameworks: Django 6 needs a newer Python than $$($(BIN)/python -V)"; else \
	  $(MAKE) --no-print-directory frameworks-tests PYTHON=$$newest VENV=$(VENV)-$${newest##*python} \
	    SOURCE=$(abspath $(VENV))/.django-source; fi

frameworks-tests: $(VENV)/.installed
	DJANGO_TESTS=$(SOURCE)/tests $(BIN)/python -m pytest tests/contrib/test_django.py tests/cli/test_init.py

$(VENV)/.django-source: | $(VENV)/.installed
	rm -rf $@ $@.new && mkdir $@.new
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
	  --ignore-requires-python --dest $@.new 'django>=6.1,<6.2'
	tar -xzf $@.new/*.tar.gz -C $@.new --strip-components 1 && rm $@.new/*.tar.gz && mv $@.new $@

# `make test` with what no test reaches; every process is traced, so it takes twice as long.
coverage: $(VENV)/.installed-ml
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist worksteal tests
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# The tests that kill, stop, fill and break: all of tests/faults, and every other test that carries the number of a
# fault. `make test` and `make long` together run them too.
faults: $(VENV)/.installed-ml
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "fault or faults" tests

# The models of tests/model for longer than `make test` does: random histories, other ones each time; SEED
# repeats a run.
model: $(VENV)/.installed
	MODEL_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n $(WORKERS) -o faulthandler_timeout=0 tests/model $(if $(SEED),--hypothesis-seed=$(SEED))

# deploy/install.sh on a bare Debian in a folder of its own: root, debootstrap, mirrors, some minutes.
deploy-test:
	tests/deploy/bare_machine.sh

# What `make test` leaves out: death at every single statement, most faults on PostgreSQL, pages in a real browser, long
# searches of the models and of the API, the cases beside those of a sample, and the benchmark's own long tests. Each
# worker would take seconds to collect the files without any.
long: $(VENV)/.installed-ml
	$(BIN)/python -m pytest -n $(WORKERS) -m "long and not on_postgres" $$(grep -rlE --include='test_*.py' 'mark\.long|sampled' tests | sort)

# The faults and the long searches on a PostgreSQL server, too; `make test-postgres` has one of each kind.
long-postgres: $(VENV)/.installed-ml
	$(BIN)/python -m pytest -n $(WORKERS) -m on_postgres $$(grep -rlE --include='test_*.py' 'mark\.(long_on_postgres|on_postgres|fault)' tests | sort)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

# Random faults for a while, then the ledger, on SQLite or with ENGINE=postgres; SEED repeats a run, CALM=1 leaves
# misbehaving handlers and failing statements out.
soak: $(VENV)/.installed
	$(BIN)/python -m tests.soak.soak --seconds $(SECONDS) --engine $(ENGINE) $(if $(SEED),--seed $(SEED)) $(if $(CALM),--calm)

# The pictures of docs/dashboard.md, from a dashboard at work; needs chromium.
screenshots: $(VENV)/.installed
	$(BIN)/python docs/screenshots.py

# Ours and the peers in one run, about twenty minutes; BENCH="--quick" and others are passed on.
bench: $(VENV)/.installed-ml
	$(BIN)/python bench/run.py $(BENCH)

# The same on PostgreSQL, beside the peers there, on the tests' server; about twenty minutes.
bench-postgres: $(VENV)/.installed
	$(BIN)/python bench/run_postgres.py $(BENCH)

# One model behind ours and behind model servers; about half an hour.
bench-models: $(VENV)/.installed-ml
	$(BIN)/python bench/run_models.py $(BENCH)

clean:
	rm -rf $(VENV) $(VENV)-3.* $(VENV)-models dist clients/node/node_modules .demo bench/.peers bench/.partial .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache

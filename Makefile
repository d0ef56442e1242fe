# Every target makes the virtual environment it needs; `make help` lists them.
# Runs on GNU make 3.81 (macOS) and later.

PYTHON ?= python3
UV     ?= uv

# Plain `=`, because other tools export HOST and PORT with meanings of their own;
# in the environment Eagre's settings are called EAGRE_HOST and so on.
HOST  = $(or $(EAGRE_HOST),127.0.0.1)
PORT  = $(or $(EAGRE_PORT),8000)
MODEL = $(or $(EAGRE_MODEL),smollm2-135m-instruct)
ARGS  =
JOBS  = 2
EXTRAS =

VENV := .venv
BIN  := $(VENV)/bin

# The stamp is written when an installation is complete. It holds checksums of what was installed
# (words 1 and 2) and of where (3 and 4), so that a changed lock, a moved folder or an interrupted
# installation is noticed; a Python that has gone away is noticed by asking it.
STAMP     := $(VENV)/installed
WANTED    := $(shell cat requirements.lock pyproject.toml static/packages/package-lock.json | cksum; pwd | cksum)
INSTALLED := $(shell $(BIN)/python -I -S -c pass 2>/dev/null && cat $(STAMP) 2>/dev/null)

PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input
# uv installs the lock in a tenth of pip's time. Where the registry has no uv, or uv cannot reach what pip's own
# configuration names, pip installs everything.
# What compiles the kernels, setuptools and a header of jaxlib, comes first.
LOCKED       = awk '/^[^ \#]/ { wanted = /^($(1))==/ } wanted' requirements.lock > $(VENV)/locked.txt
BY_UV        = $(BIN)/python -m uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes
UV_INSTALL   = $(call LOCKED,uv) && $(PIP_INSTALL) --quiet --no-deps --require-hashes -r $(VENV)/locked.txt && \
  $(call LOCKED,jaxlib|setuptools) && $(BY_UV) -r $(VENV)/locked.txt

# The native kernels: one library for each instruction set, compiled anew when their sources have changed. The stamp
# is written even where nothing could be built, so that the warning appears only once.
BUILD_NATIVE  := $(BIN)/python setup.py --quiet build_native
NATIVE_STAMP  := $(VENV)/native
NATIVE_INPUTS := setup.py $(wildcard engine/backends/native/src/*/*)
ifeq ($(origin CXX),default)
  CXX := c++
endif

.PHONY: help serve test test-clients check pull bench chaos native sanitize wheel image lock clean venv
.DEFAULT_GOAL := help

help: ## this list
	@echo "usage: make TARGET [HOST=$(HOST)] [PORT=$(PORT)] [MODEL=$(MODEL)] [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

# `exec`, so that a signal for make's child reaches the server itself, which then drains.
serve: $(NATIVE_STAMP) ## serve MODEL (a name, a path, or owner/name of the Hub) on HOST:PORT; ARGS go to `eagre serve`
	@exec $(BIN)/eagre serve --host '$(HOST)' --port '$(PORT)' --model '$(MODEL)' $(ARGS)

test: $(NATIVE_STAMP) ## run the tests in JOBS=2 processes; ARGS go to pytest
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

CLIENTS    := build/clients
NODE_PARTS := build/clients-javascript

# The clients' own requirements are in conflict with nothing of ours, because they live in an environment of their own.
test-clients: $(NATIVE_STAMP) ## try the clients of others against a server with the default model (minutes); ARGS go to pytest
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --disable-pip-version-check --no-input --quiet -r tests/clients/requirements.txt
	@if command -v npm > /dev/null; then \
	  mkdir -p $(NODE_PARTS) && cp tests/clients/javascript/package.json $(NODE_PARTS)/ && \
	  npm install --silent --no-audit --no-fund --prefix $(NODE_PARTS); fi
	@$(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini --rootdir . --confcutdir tests/clients tests/clients $(ARGS)

check: venv ## lint, formatting, types, direction of the imports
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet --diff
	@$(BIN)/mypy --no-error-summary & types=$$!; \
	$(BIN)/python -m pytest tests/test_import_direction.py; imports=$$?; \
	wait $$types && exit $$imports

pull: venv ## fetch MODEL (built-in, or owner/name of the Hub) into the user's cache
	@exec $(BIN)/eagre pull '$(MODEL)'

bench: $(NATIVE_STAMP) ## measure a server under load; ARGS go to benchmarks.serve
	@exec $(BIN)/python -m benchmarks.serve $(ARGS)

chaos: $(NATIVE_STAMP) ## attack a server for about two minutes while streams run that must not change; ARGS go to benchmarks.chaos
	@exec $(BIN)/python -m benchmarks.chaos --rounds attacks fuzz --seconds 20 --seed 1 $(ARGS)

native: venv ## compile the native kernels that are out of date; CXX names the compiler, ARGS=--force compiles all
	@$(BUILD_NATIVE) --inplace $(ARGS)
	@$(if $(ARGS),,touch $(NATIVE_STAMP))

$(NATIVE_STAMP): $(NATIVE_INPUTS) | venv
	@$(BUILD_NATIVE) --inplace
	@touch $@

SANITIZED := build/sanitized

# Python itself is not instrumented: it needs the sanitizer's library before all others, and the one that exceptions
# are thrown with right after it; its own leaks do not count.
sanitize: venv ## run the native kernels' and the sampler's tests with the address and undefined behaviour sanitizers of GCC
	@variant=$$($(BIN)/python -c 'from engine.backends.native import library as l; print(next(filter(l.runs_here, l.VARIANTS)))') && \
	$(BUILD_NATIVE) --folder $(SANITIZED) --sanitize --variant $$variant && \
	test -f $(SANITIZED)/libeagre_$$variant.so && \
	EAGRE_NATIVE_FOLDER=$(SANITIZED) ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	$(BIN)/python -m pytest tests/engine/backends/native tests/sampling $(ARGS)

wheel: venv ## build the source distribution and wheels for x86-64 and aarch64 into dist/, and try this machine's in empty environments
	@$(BIN)/python -m pytest -m packaging -o faulthandler_timeout=1800 tests/packaging $(ARGS)

BUILD_IMAGE = python:3.12-bookworm
RUN_IMAGE   = python:3.12-slim-bookworm
IMAGE       = eagre

image: ## build the container image IMAGE with docker; BUILD_IMAGE and RUN_IMAGE name what it is made from, best by digest
	@$(foreach image,$(BUILD_IMAGE) $(RUN_IMAGE),$(if $(findstring @sha256:,$(image)),,echo "$(image) is pinned by its tag, not by a digest" >&2;)) \
	exec docker build -f docker/Dockerfile --build-arg BUILD_IMAGE='$(BUILD_IMAGE)' --build-arg RUN_IMAGE='$(RUN_IMAGE)' \
	  --build-arg VERSION="$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" -t '$(IMAGE)' $(ARGS) .

LOCK := pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes --no-header

lock: ## pin the dependencies of pyproject.toml anew, and those of the images (needs uv); ARGS=--upgrade takes the newest
	@$(UV) $(LOCK) --extra dev $(ARGS) -o requirements.lock pyproject.toml
	@$(UV) $(LOCK) --constraints requirements.lock --extra otel -o docker/requirements.lock pyproject.toml
	@$(UV) $(LOCK) --constraints requirements.lock --extra cuda --extra otel -o docker/requirements-cuda.lock pyproject.toml

clean: ## remove the virtual environment and all caches of the tools
	@rm -rf $(VENV) build dist eagre.egg-info engine/backends/native/libeagre_* static/packages/*@* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The lock pins what every installation has. Extras (EXTRAS="ray otel") come on top, in versions that go with it.
READ_EXTRAS := import sys, tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
  print(*(line for name in sys.argv[1:] for line in extras[name]), sep="\n")
INSTALL_EXTRAS = $(if $(EXTRAS),@$(BIN)/python -c '$(READ_EXTRAS)' $(EXTRAS) > $(VENV)/extras.txt && \
  sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements.lock > $(VENV)/pinned.txt && \
  $(PIP_INSTALL) --quiet -r $(VENV)/extras.txt -c $(VENV)/pinned.txt)

# What a start imports, so that its byte code exists; lowering a program imports a part of JAX that nothing else does.
IMPORT_SERVER := import engine.client, engine.engine, jax, server.cli.main, server.cli.serve, tokenizers; \
  jax.jit(abs).lower(1.0)

ifeq ($(INSTALLED),$(WANTED))
venv:
	$(INSTALL_EXTRAS)
else
venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Eagre needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make $(or $(MAKECMDGOALS),serve) PYTHON=python3.12" >&2; exit 1; }
ifneq ($(wordlist 3,4,$(INSTALLED)),$(wordlist 3,4,$(WANTED)))
	@echo "setting up the virtual environment (once) ..."
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
else
	@echo "bringing the virtual environment up to date ..."
	@rm -f $(STAMP)
endif
	@# The kernels take longest, and are compiled while everything else is installed, the model (`make serve` only) and
	@# the page's packages are fetched, and byte code is written, even where Python is told to keep none: without it every
	@# start takes twice as long. A model that cannot be fetched is the server's to report.
	@# pip shows its progress bars only where it is not told to be quiet, and then every package it has already.
	@# Python compiles what it imports; pip would compile everything, tests of packages too.
	@native=; \
	$(BIN)/python static/packages/fetch.py & page=$$!; \
	if { $(UV_INSTALL); } 2> $(VENV)/uv.log; then $(BUILD_NATIVE) --inplace & native=$$!; fi; \
	{ [ -n "$$native" ] && $(BY_UV) -r requirements.lock 2>> $(VENV)/uv.log; } || { \
	  if [ -t 1 ] && [ -z '$(INSTALLED)' ]; then quiet=; else quiet=--quiet; fi; \
	  $(PIP_INSTALL) $$quiet --no-compile --no-deps --require-hashes -r requirements.lock || { wait; exit 1; }; }; \
	if [ -z "$$native" ]; then $(BUILD_NATIVE) --inplace & native=$$!; fi; \
	$(if $(filter serve,$(MAKECMDGOALS)),$(BIN)/python -m server pull '$(MODEL)' || true;) \
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c '$(IMPORT_SERVER)'; \
	wait $$page; wait $$native
	@touch $(NATIVE_STAMP)
	@# Last, because it would compile the kernels too, and say nothing of it. setuptools warns that folders here are
	@# imported from here, which is what is wanted.
	@PYTHONWARNINGS=ignore $(PIP_INSTALL) --quiet --no-deps --no-build-isolation --editable .
	@echo '$(WANTED)' > $(STAMP)
	$(INSTALL_EXTRAS)
endif

# The developer's commands. `make help` lists them; CI calls the same targets.

VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.ready

# Any Python from 3.11 on: the first one found, unless PYTHON names another.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# Two test processes per core, because they often wait for leases to run out and for processes to start. One thread each
# in torch and BLAS, because the tests are many and small.
CORES := $(shell nproc 2>/dev/null || echo 2)
JOBS ?= $(shell [ $(CORES) -gt 4 ] && echo 8 || echo $$(($(CORES) * 2)))
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
# Keep bytecode even if the environment forbids it: the tests start hundreds of processes, and each would compile the
# project again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(ONE_THREAD) $(PY) -m pytest
ORDERS ?= 20
# Share of the examples that Hypothesis tries in `make test`; `make test-all` tries all.
FEWER := LUDUS_TEST_EXAMPLES=0.25
HERE_ONLY := not postgres and not redis and not node and not cpp and not godot and not s3 and not browser and not learning and not faults and not deployment and not slow

# Secrets that docker-compose.yml demands even for commands that start no service.
COMPOSE_SECRETS := POSTGRES_PASSWORD=x LUDUS_API__TOKEN=x LUDUS_GATEWAY__TOKEN=x LUDUS_GATEWAY__TICKET_KEY=x LUDUS_WORKER__ADVERTISE_HOST=x

PIP := $(PY) -m pip --disable-pip-version-check --quiet --quiet

.DEFAULT_GOAL := help
.PHONY: help setup constraints demo test test-all test-slow test-orders test-services browser gpu faults chaos learn games learn-quick results soak bench lint format types imports audit protos check-generated \
	deployment deployment-quick cases locks check-migrations api docs pictures check-docs compose-check containers wheel wheel-check clean

help: ## Print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## Make .venv with exactly the versions of constraints.txt (PYTHON=... chooses the interpreter)

$(STAMP): pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] || { echo "Ludus needs Python 3.11 or later: install it, or say PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Installing the exact versions of constraints.txt into $(VENV) (minutes on first use) ..."
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) could not make a virtual environment (on Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@$(PIP) install --constraint constraints.txt pip setuptools hatchling
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

constraints: setup ## Write constraints.txt from the packages in .venv (after changing pyproject.toml)
	@$(PY) docs/generate.py constraints

# Not torch: its builds for a CPU and for CUDA come from different indexes (docker/*.Dockerfile).
locks: setup ## Write docker/*.lock, the hashes of every package in the images (after changing constraints.txt)
	@$(PIP) install 'pip-tools==7.6.2'
	@for extra in server worker; do echo hatchling >$$extra.in && \
		$(BIN)/pip-compile --quiet --extra $$extra --extra telemetry --constraint constraints.txt --generate-hashes --strip-extras --no-annotate \
			--no-header --no-emit-options --no-emit-index-url --no-emit-trusted-host --unsafe-package torch \
			--output-file docker/$$extra.lock pyproject.toml $$extra.in && sed -i '/^\(#\|ludus\|$$\)/d' docker/$$extra.lock; rm -f $$extra.in; done

demo: setup ## Start the stack, train CartPole-v1 over HTTP and gRPC, play the ONNX model (about a minute)
	@$(PY) examples/demo/demo.py

test: setup ## Run the test suite, in minutes (needs no PostgreSQL, Redis, Node.js, S3 server or Godot)
	@$(FEWER) $(PYTEST) -n $(JOBS) --dist loadgroup --no-loadscope-reorder -m "$(HERE_ONLY) and not long" $(ARGS)

test-all: setup ## Run the test suite with the long tests, as CI does
	@$(PYTEST) -n $(JOBS) --dist loadgroup --no-loadscope-reorder -m "$(HERE_ONLY)" $(ARGS)

test-slow: setup ## Run the tests that take minutes each and belong to no other target (ARGS='-k compiled')
	@$(PYTEST) -m "slow and not chaos and not deployment and not learning and not containers and not postgres" $(ARGS)

test-orders: setup ## Run `make test` in 20 random orders, with a table at the end (ORDERS=5, ARGS='--seed 4711')
	@$(FEWER) $(PYTEST:pytest=tests.orders) --orders $(ORDERS) $(ARGS) -- -n $(JOBS) --dist loadgroup --no-loadscope-reorder -m "$(HERE_ONLY) and not long"

test-services: setup ## Run the tests that need PostgreSQL, Redis, Node.js, an S3 server, a C++ compiler or Godot (LUDUS_TEST_POSTGRES_URL, LUDUS_TEST_REDIS_URL, juicefs)
	@$(PYTEST) -n $(JOBS) --dist loadfile -m "(postgres or redis or node or s3 or cpp or godot) and not slow" $(ARGS)

browser: setup ## Run the tests of the pages in Chromium (needs it installed)
	@$(PYTEST) -n $(CORES) --dist loadgroup -m "browser and not slow" $(ARGS)

gpu: setup ## Run the tests that need a GPU: learning, resuming, acting and exporting there equal the CPU's
	@$(PYTEST) -m gpu $(ARGS)

faults: setup ## Kill and interrupt every part of a running stack: acknowledged data survives, no process remains
	@$(PYTEST) -n $(JOBS) --dist loadgroup -m "faults and not s3 and not godot and not slow" $(ARGS)

chaos: setup ## The same for a deployment on PostgreSQL and Redis with two workers, its servers and network (minutes)
	@$(ONE_THREAD) $(PYTEST) -m chaos --randomly-dont-reorganize $(ARGS)

learn: setup ## Check that everything learns, to stated bars: hours; continues after an interruption (ARGS='-k pendulum')
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev,learn]'
	@$(PYTEST) -m "learning and not games" --randomly-dont-reorganize $(ARGS)

games: setup ## Train the games of docs/games.md by the commands of that page: half an hour (ARGS='-k doom')
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev,games]'
	@$(PYTEST) -m games --randomly-dont-reorganize $(ARGS)
	@$(PYTEST) tests/ludus/adapters/test_envpool.py tests/ludus/adapters/test_vector.py

learn-quick: setup ## Run the learning tests of CI: minutes
	@$(PYTEST) -n $(CORES) --dist loadgroup -m "learning and not hours" $(ARGS)

results: setup ## Write docs/results.md from the scores that `make learn` stored
	@$(PY) -m tests.learning.report

soak: setup ## Train for 10 minutes and check that no process grows
	@$(ONE_THREAD) $(PY) benchmarks/soak.py $(ARGS)

bench: setup ## Run the benchmarks: prints a table of ratios and writes JSON
	@$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev,bench]'
	@$(PY) benchmarks/run.py $(ARGS)

lint: setup ## Check style and spelling (ruff, codespell)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/codespell

format: setup ## Reformat the code and fix what ruff can fix
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

types: setup ## Check types (mypy strict)
	@$(BIN)/mypy

imports: setup ## Check the import rules (import-linter)
	@$(BIN)/lint-imports --no-logo

audit: setup ## Compare every pinned package with the known advisories (osv.dev, or .ci/advisories.txt without a network)
	@$(PY) .ci/audit.py

protos: setup ## Generate ludus/protocol from the .proto files
	@$(PY) proto/generate.py

check-generated: setup ## Fail if a generated file is out of date
	@$(PY) proto/generate.py --check
	@$(PY) docs/generate.py --check

check-migrations: setup ## Check migrations up, down, up, and schema == models (also on PostgreSQL if LUDUS_TEST_POSTGRES_URL is set)
	@$(PYTEST) tests/migrations $(ARGS)

api: setup ## Write tests/golden/openapi.json from the application
	@$(PY) docs/generate.py openapi

docs: setup ## Write the generated documentation (settings, configuration, .env.example, openapi.json)
	@$(PY) docs/generate.py

deployment: setup ## Start the roles of docker-compose.yml in network namespaces (root; PostgreSQL, Redis, juicefs), and its images where an engine has them
	@$(PYTEST) tests/deployment tests/containers --randomly-dont-reorganize $(ARGS)

deployment-quick: setup ## Run those of them that CI runs: minutes
	@$(PYTEST) tests/deployment --randomly-dont-reorganize -m "not slow" $(ARGS)

cases: setup ## Try reports of people, each a folder with a try.sh that prints OK or FAIL (CASES=FOLDER; PEER=venv with mlagents 1.1.0)
	@[ -d "$(CASES)" ] || { echo "say CASES=FOLDER: there is no folder '$(CASES)'" >&2; exit 2; }
	@failed=0; for try in $(CASES)/*/try.sh; do printf '%s ' "$$(basename "$$(dirname "$$try")")"; \
		LUDUS=$(abspath $(BIN))/ludus PEER=$(PEER) SLOW=$(or $(SLOW),1) sh "$$try" || failed=$$((failed + 1)); done; \
		echo "$$failed failed"; [ $$failed -eq 0 ]

pictures: setup ## Write the pictures of docs/dashboard.md (needs Chromium)
	@$(PY) -m tests.web.pictures

containers: setup ## Build the images and run docker-compose.yml itself (Docker, or Podman's socket in DOCKER_HOST; OVERRIDE=FILE: a further Compose file, BUILD=no: with the images that are there)
	@[ "$(BUILD)" = no ] || $(COMPOSE_SECRETS) docker compose --file docker-compose.yml $(if $(OVERRIDE),--file $(OVERRIDE)) build
	@LUDUS_TEST_COMPOSE_OVERRIDE=$(abspath $(OVERRIDE)) $(PYTEST) -m containers $(ARGS)

compose-check: ## Check docker-compose.yml (needs Docker Compose)
	@$(COMPOSE_SECRETS) docker compose --profile gpu config --quiet
	@echo "docker-compose.yml is valid"

wheel: setup ## Build the wheel of the SDK and the client commands into dist/: one file for every system
	@$(PY) -m pip --disable-pip-version-check --quiet wheel --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/ludus-*.whl

wheel-check: setup ## Build the wheel, check that it contains only `ludus` and works by itself
	@$(PY) .ci/check_wheel.py

clean: ## Remove .venv, caches and the demo's files
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

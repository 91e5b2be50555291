# demo, test and check set up .venv by themselves; when nothing changed, that takes no time.
#
#   make demo [ARGS="--model M"]   the tour
#   make serve [ARGS="--port P"]   the server, on the demo model unless ARGS name another
#   make check                     format, lint, types, imports, unit tests: under two minutes
#   make test                      check, then property and end-to-end tests
#   make soak                      the same tests at full counts
#   make sanitize                  the kernels' tests under AddressSanitizer
#   make bench                     every benchmark, one JSON object each
#   make families              runs a tiny model of each family and writes docs/families.md
#   make system                    Debian packages, only what is missing
#   make clean                     removes .venv and every cache

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := check
.DELETE_ON_ERROR:

PYTHON ?= python3
ARGS ?=

bin := .venv/bin
# A package's tests may not exist yet; pytest refuses a folder that is not there.
unit_tests := $(wildcard tests/unit)
other_tests := $(wildcard tests/property tests/e2e)
# A file's tests stay together: they share what is dear to set up.
pytest := $(bin)/pytest -q -n 2 --dist loadfile

.PHONY: install install-compat demo serve static check test soak sanitize bench families system clean

install:
	@PYTHON="$(PYTHON)" scripts/install.sh

# With the clients that the tests hold the server against.
install-compat:
	@PYTHON="$(PYTHON)" scripts/install.sh compat

demo: install
	@$(bin)/prefold demo $(ARGS)

serve: install
	@$(bin)/prefold serve $(ARGS)

static: install-compat
	@echo "==> formatting"
	@$(bin)/ruff format --check .
	@echo "==> lint"
	@$(bin)/ruff check .
	@echo "==> types"
	@$(bin)/mypy --num-workers 2
	@echo "==> imports"
	@$(bin)/lint-imports --no-logo

check: static
	@echo "==> unit tests"
	@$(pytest) $(unit_tests)

test: export HYPOTHESIS_PROFILE ?= ci
test: static
	@echo "==> unit, property and end-to-end tests"
	@$(pytest) --durations=10 $(unit_tests) $(other_tests)

soak: export HYPOTHESIS_PROFILE := soak
soak: export PREFOLD_SOAK := 1
soak: install-compat
	@echo "==> all tests at full counts; this takes about 20 minutes"
	@$(pytest) --durations=10 $(unit_tests) $(other_tests)

sanitize: install
	@scripts/sanitize.sh

bench: install
	@for script in $$(grep -lx "def main() -> int:" benchmarks/*.py); do \
	  echo "==> $$script" >&2; \
	  $(bin)/python "$$script" --json; \
	done

families: install
	@PYTHONPATH=tests $(bin)/python -m support.family_table

system:
	@PYTHON="$(PYTHON)" scripts/system.sh

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

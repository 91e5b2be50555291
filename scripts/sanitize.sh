#!/usr/bin/env bash
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer and runs their
# tests once. Run by `make sanitize`; takes a few minutes.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT

echo "==> building with sanitizers"
PREFOLD_REQUIRE_NATIVE=1 .venv/bin/pip wheel --quiet --no-deps --wheel-dir "$place" \
  --config-settings=cmake.define.PREFOLD_SANITIZE=ON .
.venv/bin/python -m zipfile -e "$place"/prefold-*.whl "$place/tree"

compiler="${CXX:-g++}"
preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"
packages="$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

echo "==> kernel tests"
# Without site, the editable install's import hook does not find its own, plain kernels. What
# Python and torch never free is theirs.
LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
  PYTHONPATH="$place/tree:$packages" HYPOTHESIS_PROFILE="${HYPOTHESIS_PROFILE:-ci}" \
  .venv/bin/python -S -m pytest -q -p no:cacheprovider tests/*/*native*.py \
  tests/*/engine/*native*.py tests/*/*linear*.py tests/*/engine/*linear*.py \
  tests/*/*fused*.py tests/*/engine/*fused*.py tests/*/engine/*stack*.py \
  tests/*/engine/*pages*.py tests/*/engine/*norm*.py

#!/usr/bin/env bash
# Installs Prefold with its development tools into .venv, and does nothing when
# nothing changed since the last time. Run by the Makefile.
#
#   scripts/install.sh          what the commands need, and the development tools
#   scripts/install.sh compat   also the clients that the tests hold the server against
#
#   PYTHON                   the interpreter to build .venv with (default: python3)
#   CXX                      the C++ compiler for the kernels (default: CMake's choice)
#   PREFOLD_REQUIRE_NATIVE   1 makes it an error that the kernels cannot be built
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
venv=.venv
extras="demo,dev,server,vision"
stamp="$venv/.prefold-installed"
if [[ "${1:-}" == compat ]]; then
  extras+=",compat"
  stamp+="-compat"
fi
constraints=

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# A venv holds absolute paths, so a moved working tree needs a new installation.
wanted_stamp() {
  {
    pwd -P
    cat pyproject.toml constraints.txt scripts/install.sh CMakeLists.txt native/*
    # Kernels that could not be built are tried again with another compiler.
    echo "${CXX:-} ${PREFOLD_REQUIRE_NATIVE:-}"
  } | cksum
}

venv_works() {
  [[ -x "$venv/bin/python" ]] && "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

# Prints the version of a torch that can be imported and is new enough, or nothing.
usable_torch() {
  "$1" - 2>/dev/null <<'PY' || true
import torch

if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6):
    print(torch.__version__)
PY
}

create_venv() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    die "Prefold needs Python 3.11 or newer; set PYTHON to one, as in: make PYTHON=python3.12 demo"
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "this Python cannot create virtual environments; run: make system"
  local found
  found="$(usable_torch "$python")"
  if [[ -n "$found" ]]; then
    say "creating $venv on top of the installed packages (torch $found is used as it is)"
    "$python" -m venv --clear --system-site-packages "$venv"
  else
    say "creating $venv"
    "$python" -m venv --clear "$venv"
  fi
}

# Pins must not fight a torch that is already there: its own pin goes, and so do
# those of everything it requires.
write_constraints_without_torch() {
  "$venv/bin/python" - constraints.txt >"$1" <<'PY'
import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


kept_open: set[str] = set()
pending = ["torch"]
while pending:
    name = normalise(pending.pop())
    if name in kept_open:
        continue
    kept_open.add(name)
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        continue
    pending += [re.match(r"[\w.-]+", line)[0] for line in lines if "extra ==" not in line]

for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
    if normalise(line.partition("==")[0]) not in kept_open:
        print(line)
PY
}

pip_install() {
  local options=(--disable-pip-version-check --constraint "$constraints")
  # pip's progress bars are for terminals; elsewhere its listing would bury the rest.
  [[ -t 1 ]] || options+=(--quiet)
  "$venv/bin/python" -m pip install "${options[@]}" "$@"
}

# On top of installed packages, pip is content with tools it finds there, and their
# commands are then missing from the venv.
install_missing_commands() {
  local pair missing=()
  for pair in ruff:ruff mypy:mypy pytest:pytest lint-imports:import-linter; do
    [[ -x "$venv/bin/${pair%%:*}" ]] || missing+=("${pair##*:}")
  done
  if [[ ${#missing[@]} -gt 0 ]]; then
    pip_install --ignore-installed --no-deps "${missing[@]}"
  fi
}

warn_without_kernels() {
  if ! "$venv/bin/python" -c 'import torch, prefold.engine._kernels' 2>/dev/null; then
    printf 'warning: %s\n' "the C++ kernels could not be built, so attention is the slower \
reference; run \"make system\" for a compiler, then \"make install\"" >&2
  fi
}

main() {
  # The larger installation holds the smaller one.
  local each
  for each in "$stamp" "$venv/.prefold-installed-compat"; do
    if [[ -f "$each" && "$(cat "$each")" == "$(wanted_stamp)" && -x "$venv/bin/python" ]]; then
      return
    fi
  done
  venv_works || create_venv
  rm -f "$venv"/.prefold-installed*

  local pinned found
  pinned="$(sed -n 's/^torch==//p' constraints.txt)"
  found="$(usable_torch "$venv/bin/python")"
  constraints=constraints.txt
  if [[ -z "$found" ]]; then
    say "installing torch $pinned: 0.2 GB for a CPU build, several GB for a GPU build, once"
    pip_install "torch==$pinned"
  elif [[ "${found%%+*}" == "$pinned" ]]; then
    say "torch $found is already there"
  else
    say "torch $found is already there; its pins are left out of constraints.txt"
    constraints="$venv/constraints-without-torch.txt"
    write_constraints_without_torch "$constraints"
  fi

  say "installing Prefold with its extras $extras, 0.3 GB (0.9 GB with compat), once"
  # The build backend comes from the same pins, not from a throw-away environment.
  pip_install "scikit-build-core>=0.11" "nanobind>=3.0"
  local tool
  for tool in cmake ninja; do
    command -v "$tool" >/dev/null || pip_install "$tool"
  done
  pip_install --no-build-isolation --editable ".[$extras]"
  install_missing_commands
  warn_without_kernels
  wanted_stamp >"$stamp"
  say "installed into $venv"
}

main

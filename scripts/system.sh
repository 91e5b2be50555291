#!/usr/bin/env bash
# Installs the Debian packages that Prefold needs and that are missing; none else.
#
#   PYTHON   the interpreter that .venv is built with (default: python3)
set -euo pipefail

python="${PYTHON:-python3}"

# A compiler for the kernels and a browser for the tests of the page, if none is there.
packages=()

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

is_installed() {
  [[ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

main() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "no Debian packages here: install Python 3.11 or newer with venv by your system's means"
    return
  fi
  # Any interpreter that can build a virtual environment will do, Debian's or not.
  "$python" -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3 python3-venv)

  command -v "${CXX:-c++}" >/dev/null || packages+=(g++)
  command -v chromium >/dev/null || packages+=(chromium)

  local missing=() package
  for package in ${packages[@]+"${packages[@]}"}; do
    is_installed "$package" || missing+=("$package")
  done
  if [[ ${#missing[@]} -eq 0 ]]; then
    say "system packages: nothing is missing"
    return
  fi

  local as_root=()
  if [[ "$(id -u)" -ne 0 ]]; then
    command -v sudo >/dev/null || die "as root, run: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing system packages: ${missing[*]}"
  ${as_root[@]+"${as_root[@]}"} apt-get update -q
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends "${missing[@]}"
}

main

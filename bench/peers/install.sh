#!/usr/bin/env bash
# Installs what run.sh compares kvtier with, into a folder of its own: nothing goes into the system, and removing
# the folder removes it all. Needs apt-get, python3 with venv, and the network; no rights of root.
#
#   bench/peers/install.sh                  # redis, mooncake and lmcache
#   bench/peers/install.sh redis mooncake   # without lmcache, which takes minutes and 6 GB
#
# The folder is build/peers, or what KVTIER_PEERS names. Versions are pinned: a table says what it compared.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=${KVTIER_PEERS:-build/peers}

step() { printf '== %s (after %d s)\n' "$1" "$SECONDS" >&2; }

# Debian packages, unpacked: programs in usr/bin, libraries in usr/lib/*.
unpack() {  # package...
  mkdir -p "$folder/deb" "$folder/root"
  (cd "$folder/deb" && apt-get -q download "$@" >&2)
  for package in "$@"; do
    dpkg-deb -x "$folder/deb/$package"_*.deb "$folder/root"
  done
}

packages() {  # venv requirement...
  [[ -x $folder/$1/bin/pip ]] || python3 -m venv "$folder/$1"
  "$folder/$1/bin/pip" install -q --no-cache-dir --only-binary=:all: "${@:2}" >&2
}

install_redis() { unpack redis-server redis-tools libjemalloc2 liblzf1 libatomic1; }

install_mooncake() {
  unpack libibverbs1 libnl-3-200 libnl-route-3-200
  packages mooncake mooncake-transfer-engine-non-cuda==0.3.13.post1 numpy
}

install_lmcache() { packages lmcache lmcache==0.5.6; }

(($#)) || set -- redis mooncake lmcache
for peer in "$@"; do
  case $peer in
    redis | mooncake | lmcache) step "install $peer into $folder"; "install_$peer" ;;
    *) echo "usage: bench/peers/install.sh [redis] [mooncake] [lmcache]" >&2; exit 2 ;;
  esac
done
step "done: bench/peers/run.sh"

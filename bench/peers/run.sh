#!/usr/bin/env bash
# peers.py in a network namespace where only lo exists: some of what it starts listens on every interface.
# Takes the arguments of peers.py; see bench/peers/run.sh --help.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
export PYTHONDONTWRITEBYTECODE=1

if ! command -v ip >/dev/null; then
  exec python3 "$here/peers.py" "$@"
elif unshare -n true 2>/dev/null; then
  namespace=(unshare -n)
elif unshare -rn true 2>/dev/null; then
  namespace=(unshare -rn)
else
  exec python3 "$here/peers.py" "$@"
fi
exec "${namespace[@]}" bash -c 'ip link set lo up && exec python3 "$@"' run.sh "$here/peers.py" "$@"

#!/usr/bin/env bash
# From a fresh Debian 12 to a running cache: builds kvtier, starts kvtierd in a temporary directory,
# replays a trace against it, stops it and prints the table; the last line is `hit ratio 0.1234`.
#
#   deploy/run.sh           replays the built-in multi-turn generator
#   deploy/run.sh TRACE     replays a Mooncake-format trace, .jsonl or .jsonl.zst
#
# The RAM tier is 256 MiB; each 512-token block of the replay stands for 64 KiB of KV.
set -euo pipefail

if (( $# > 1 )) || [[ ${1-} == -* ]]; then
  echo "usage: deploy/run.sh [TRACE]" >&2
  exit 2
fi
trace=()
if (( $# )); then
  [[ -r $1 ]] || { echo "run.sh: cannot read the trace $1" >&2; exit 2; }
  trace=(--trace "$(realpath "$1")")
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deploy/deps.sh
cmake --preset release >&2
cmake --build --preset release >&2

work=$(mktemp -d "${TMPDIR:-/tmp}/kvtier.XXXXXX")
running=()
finish() {
  for pid in "${running[@]}"; do
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" || true
  done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
  echo "run.sh: $1; kvtierd said:" >&2
  cat "$work/kvtierd.log" >&2
  exit 1
}

# kvtierd prints one line when it serves, and closes its output when it ends: no need to poll.
mkfifo "$work/ready"
build/release/bin/kvtierd --data-dir "$work/data" --ram-bytes 256MiB \
  >"$work/ready" 2>"$work/kvtierd.log" &
daemon=$!
running=("$daemon")
exec 3<"$work/ready"
read -r -t 60 line <&3 || fail "kvtierd did not start"
[[ $line == ready\ * ]] || fail "kvtierd answered '$line' where 'ready ...' was expected"

# In the background, so that a signal to this script is heard while it runs.
build/release/bin/kvtier replay --server "unix:$work/data/kvtier.sock" --block-bytes 64KiB \
  "${trace[@]}" >"$work/table" &
running=("$!" "$daemon")
wait "$!" || fail "the replay failed"

kill -TERM "$daemon"
running=()
wait "$daemon" || fail "kvtierd ended with status $?"

cat "$work/table"
echo "hit ratio $(awk 'END {print $NF}' "$work/table")"

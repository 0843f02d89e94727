#!/bin/sh
# The audit of experiments/audit.toml: the runs' next round as it is, and a first round of one step on one example,
# where reconstruction is easiest. What is there already is kept, so that the same command goes on after an interruption.
# Usage: experiments/audit.sh OUT [SEEDS [options of fedfi compare]]    (FEDFI_DATA set, the extra 'he' installed)
set -eu
out=${1:?usage: experiments/audit.sh OUT [SEEDS]}
seeds=${2:-0,1,2}
shift
[ $# -eq 0 ] || shift
fedfi compare "$(dirname "$0")/audit.toml" --seeds "$seeds" --workers 2 --out "$out/runs" --quiet "$@"
attack() { # name, then options of fedfi audit
  name=$1
  shift
  [ -e "$out/$name/audit.json" ] || fedfi audit "$out"/runs/*/seed-*/ "$@" --out "$out/$name" --quiet
}
attack as-run &
first=$!
attack one-step --set train.steps=1 --set train.batch_size=1
wait $first
cat "$out/as-run/audit.md" "$out/one-step/audit.md"

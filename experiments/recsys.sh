#!/bin/sh
# All measurements of recommendation, one after the other, into results/recsys-*. What is done already is kept, so the
# same command goes on after an interruption. Usage, on two cores:
#
#   FEDFI_DATA=... MINUTES=100 sh experiments/recsys.sh [SCALE]
#
# MINUTES is for all grids together, in the shares below; without it all seeds are run. A grid's first seed is always
# run, others while there is time left. SLOW=1 adds the rivals that take hours at other sizes (recsys-rivals-slow.toml).
set -e
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
SCALE=${1:-small}
OUT=${OUT:-results}
export OMP_NUM_THREADS=1

grid() { # name, share of the minutes in %
  minutes=inf
  if [ -n "$MINUTES" ]; then minutes=$(awk "BEGIN { print $MINUTES * $2 / 100 }"); fi
  $PYTHON experiments/grid.py "experiments/recsys-$1.toml" --scale "$SCALE" --all --last 1 --minutes "$minutes" \
    -o "$OUT/recsys-$1"
}

followers() { # directory, overrides
  directory=$1 seeds=0-4
  shift
  if [ "$SCALE" = smoke ]; then
    seeds=0
    set -- "$@" --set rounds=5 --set algorithm.interval=2 --set model.dimension=8
  fi
  $PYTHON experiments/followers.py experiments/recsys-followers.toml --seeds $seeds "$@" -o "$OUT/$directory"
}

grid rivals 45
grid synchronisation 20
followers recsys-followers
followers recsys-followers-video --set data.name=amazon_video
grid rivals-parity 22
grid synchronisation-parity 13
if [ -n "$SLOW" ]; then grid rivals-slow 20; fi

#!/bin/sh
# All measurements of recommendation, one after the other, into results/recsys-*; what is done already is kept, so the
# same command goes on after an interruption. MINUTES bounds each of the five grids: what has not begun by then is left,
# later seeds first. Usage: FEDFI_DATA=... MINUTES=20 sh experiments/recsys.sh [SCALE]
set -e
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
SCALE=${1:-small}
export OMP_NUM_THREADS=1
for grid in rivals rivals-parity synchronisation synchronisation-parity rivals-slow; do
  "$PYTHON" experiments/grid.py experiments/recsys-$grid.toml --scale "$SCALE" --all --last 1 \
    --minutes "${MINUTES:-inf}" -o ${OUT:-results}/recsys-$grid
done
short= seeds=0-4
if [ "$SCALE" = smoke ]; then short="--set rounds=5 --set algorithm.interval=2 --set model.dimension=8" seeds=0; fi
"$PYTHON" experiments/followers.py experiments/recsys-followers.toml --seeds $seeds $short -o "${OUT:-results}/recsys-followers"
"$PYTHON" experiments/followers.py experiments/recsys-followers.toml --seeds $seeds $short \
  --set data.name=amazon_video -o "${OUT:-results}/recsys-followers-video"

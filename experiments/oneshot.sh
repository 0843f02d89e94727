#!/bin/sh
# All of the one-shot grids on CIFAR-10: about two and a half hours on two cores, the first three of them 90 minutes. Runs
# that are there are kept, so the same command goes on after an interruption.
#   FEDFI_DATA=... experiments/oneshot.sh [SCALE] [FOLDER]       # SCALE small (default) or try; FOLDER results
set -eu
scale=${1:-small}
folder=${2:-results}
here=$(dirname "$0")
export OMP_NUM_THREADS=1
for grid in oneshot-cifar10 oneshot-cifar10-gap oneshot-cifar10-independent oneshot-cifar10-resnet oneshot-cifar10-whole; do
    "${PYTHON:-python}" "$here/grid.py" "$here/$grid.toml" --scale "$scale" --workers 2 -o "$folder/$grid"
done
grid=oneshot-cifar10-rounds
"${PYTHON:-python}" "$here/grid.py" "$here/$grid.toml" --scale "$scale" --workers 2 --last 1 -o "$folder/$grid"

#!/bin/sh
# All measurements of personalised and encrypted methods: an hour and a half on two cores, by an estimate from the time
# of a training step.
# The same command again goes on where an interruption left it.
# Usage: experiments/personal.sh OUT [SCALE]    (.venv/bin on PATH, FEDFI_DATA set, the extras 'he' and 'dp' installed)
set -eu
out=${1:?usage: experiments/personal.sh OUT [SCALE]}
here=$(dirname "$0")
PYTHON=${PYTHON:-python}
$PYTHON "$here/grid.py" "$here/personal.toml" --scale "${2:-small}" -o "$out/personal"
$PYTHON "$here/grid.py" "$here/encrypted.toml" --scale small -o "$out/encrypted"
sh "$here/audit.sh" "$out/audit"

#!/bin/sh
# The audit of FedAvg, FedPer, FedFIHE in the clear and encrypted, with packets of 16 to 1024, on PneumoniaMNIST.
# Usage: experiments/audit.sh OUT    (FEDFI_DATA set, the extra 'he' installed)
set -eu
out=${1:?usage: experiments/audit.sh OUT}
run() { # label, then settings
  label=$1
  shift
  fedfi run examples/pneumonia.toml --set rounds=1 --set data.clients=60 "$@" --out "$out/$label" --quiet
}
run fedavg --set algorithm='{ name = "fedavg" }'
run fedper --set algorithm='{ name = "fedper" }'
for size in 16 64 256 1024; do
  run "fedfihe-clear-$size" --set algorithm.encryption="{ enabled = false, packet_size = $size }"
  run "fedfihe-encrypted-$size" --set algorithm.encryption="{ packet_size = $size }"
done
run fedfihe-encrypted-votes --set algorithm.votes=encrypted
mkdir -p "$out/audits"
fedfi audit "$out"/fed*/ --out "$out/audits/as-run"
fedfi audit "$out"/fed*/ --set train.steps=1 --set train.batch_size=1 --out "$out/audits/one-step"

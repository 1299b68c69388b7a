#!/usr/bin/env bash
# Train the built-in models of both families further on one H200 (studies/builtin/criteria.md).
#
#   bash studies/gpu/builtin.sh data           # training data, a minute on 15 cores; no GPU
#   bash studies/gpu/builtin.sh train          # about 11 minutes with a GPU; waits for the data, or makes them
#   MPS=yes OUT=back studies/gpu/hold.sh start 560 'bash studies/gpu/builtin.sh train'  # where it is lent for ten minutes a call
#   OUT=back studies/gpu/hold.sh wait 560                                               # again, until `complete`
#
# What lies under runs/tiny already is left as it is: to go on with another machine, carry what came back as
# .carry/runs.tgz. TRAIN holds further options of studies.builtin.train; EXAMPLES and GAPS say how much data is made.
set -euo pipefail
python=${PYTHON:-python3} workers=${WORKERS:-15} made=runs/tiny

data() { # by one process at a time; a file that is there is complete
  mkdir -p "$made"
  (
    flock 9
    if [ -f "$made/data.safetensors" ] && [ -f "$made/gaps.safetensors" ]; then exit; fi
    echo "$(date +%T) data"
    "$python" -m studies.builtin.prepare --seed 1 --out "$made/gaps.safetensors" --examples "${GAPS:-240000}" --workers 4 --void-gaps &
    "$python" -m studies.builtin.prepare --seed 1 --out "$made/data.safetensors" --examples "${EXAMPLES:-2000000}" --workers "$workers"
    wait $!
    echo "$(date +%T) data done"
  ) 9> "$made/data.lock"
}

case "${1:-}" in
  data) data ;;
  train)
    if [ -f .carry/runs.tgz ]; then tar xzf .carry/runs.tgz; fi
    data
    echo "$(date +%T) training"
    export TORCHINDUCTOR_COMPILE_THREADS=3 # eight processes may compile at the same time
    # shellcheck disable=SC2086
    "$python" -m studies.builtin.train ${TRAIN:-}
    echo "$(date +%T) done"
    ;;
  *)
    echo "usage: bash studies/gpu/builtin.sh data | train" >&2
    exit 2
    ;;
esac

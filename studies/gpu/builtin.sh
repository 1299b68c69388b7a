#!/usr/bin/env bash
# Train the built-in models of both families on one H200: about 18 minutes, data included (studies/builtin/criteria.md).
#
#   bash studies/gpu/builtin.sh                # with a GPU
#   MPS=yes OUT=back studies/gpu/hold.sh start 560 'bash studies/gpu/builtin.sh'   # where it is lent for ten minutes a call
#   OUT=back studies/gpu/hold.sh wait 560                                          # once or twice, until `complete`
#
# What lies under runs/tiny already is left as it is: to go on with another machine, carry what came back as
# .carry/runs.tgz. TRAIN holds further options of studies.builtin.train; EXAMPLES and GAPS say how much data is made.
set -euo pipefail
python=${PYTHON:-python3} workers=${WORKERS:-15}
export TORCHINDUCTOR_COMPILE_THREADS=3 # ten processes may compile at the same time
if [ -f .carry/runs.tgz ]; then tar xzf .carry/runs.tgz; fi
echo "$(date +%T) data"
"$python" -m studies.builtin.prepare --out runs/tiny/gaps.safetensors --examples "${GAPS:-240000}" --workers 4 --void-gaps &
gaps=$!
"$python" -m studies.builtin.prepare --out runs/tiny/data.safetensors --examples "${EXAMPLES:-2000000}" --workers "$workers"
wait "$gaps"
echo "$(date +%T) training"
# shellcheck disable=SC2086
"$python" -m studies.builtin.train ${TRAIN:-}
echo "$(date +%T) done"

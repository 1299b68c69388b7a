#!/usr/bin/env bash
# Answers of the built-in models of both families to their test problems, every cell of studies.builtin.score; then wall
# times, with the GPU to themselves.
#
#   MPS=yes OUT=back studies/gpu/hold.sh start 500 'RUNS=runs/tiny bash studies/gpu/score.sh'   # of a training; without RUNS, as shipped
#   python -m studies.builtin.score judge && python -m studies.builtin.score keep               # where there is a sandbox
#
# SCORE holds further options, for example `--count 128`. After SECONDS_LEFT the cells that are left wait for another call.
set -euo pipefail
python=${PYTHON:-python3}
given=(--out runs/score --device "${DEVICE:-cuda}" --commit "${COMMIT:-}" ${RUNS:+--runs "$RUNS"})
# shellcheck disable=SC2086
timeout "${SECONDS_LEFT:-480}" "$python" -m studies.builtin.score answer "${given[@]}" --workers "${WORKERS:-12}" ${SCORE:-} || echo "not all was answered"
"$python" -m studies.builtin.score time "${given[@]}" --family llada --count "${ROWS:-256}"

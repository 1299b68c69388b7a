#!/usr/bin/env bash
# Answers of the built-in models of both families to their test problems, every arm a process of its own.
#
#   MPS=yes studies/gpu/hold.sh start 300 'bash studies/gpu/score.sh'
#   python -m studies.builtin.score --stage judge --out runs/score/llada-void.jsonl     # where there is a sandbox
#
# COUNT problems of each task; SCORE holds further options, for example `--runs runs/tiny`.
set -euo pipefail
python=${PYTHON:-python3}
for family in llada dream; do
  for arm in instruct void eos rainbow; do
    # shellcheck disable=SC2086
    "$python" -m studies.builtin.score --family "$family" --arms "$arm" --count "${COUNT:-128}" --device "${DEVICE:-cuda}" \
      --stage answer --out "runs/score/$family-$arm.jsonl" ${SCORE:-} &
  done
done
wait

#!/usr/bin/env bash
# Train the seeds of a built-in family and answer their sweeps, and the fine-tunes of the base for seed 1.
#
#   python -m studies.builtin.seeds sweep --family llada --stage prepare                          # before there are models
#   python -m studies.builtin.seeds sweep --family llada --seeds 1 --from-base --stage prepare
#   bash studies/gpu/seeds.sh llada                             # with a GPU; studies/gpu/hold.sh where it is lent for minutes
#
# Then `--stage judge` of the same two commands. Training takes half an hour of an H200, the answers five minutes. What has
# been trained or answered is left as it is. BASED names the families whose bases are fine-tuned.
set -euo pipefail
if [ $# -ne 1 ] || ! ls -d runs/seeds/"$1"-*/sweep > /dev/null; then
  echo "usage: bash studies/gpu/seeds.sh FAMILY, after its sweeps have been prepared" >&2
  exit 2
fi
family=$1 python=${PYTHON:-python3}
train=("$python" -m studies.builtin.seeds train --out runs/seeds --together "${TOGETHER:-9}")
how=(--together 15 --device "${DEVICE:-cuda}" --rows 128 --tokens 65536)

echo "$(date +%T) data"
if [ "$family" = dream ] && [ ! -f runs/tiny/names.safetensors ]; then
  "$python" -m studies.builtin.prepare --out runs/tiny/names.safetensors --examples "${NAMES:-60000}" --workers 2 --names
fi
if [ ! -f runs/tiny/data.safetensors ]; then
  "$python" -m studies.builtin.prepare --out runs/tiny/data.safetensors --examples "${EXAMPLES:-1200000}" --workers "${WORKERS:-14}"
fi
echo "$(date +%T) training"
# shellcheck disable=SC2086
"${train[@]}" --family "$family" ${TRAIN:-}
echo "$(date +%T) answers"
"$python" -m studies.gpu.answers runs/seeds/"$family"-*/sweep "${how[@]}"
for based in ${BASED-$family}; do
  echo "$(date +%T) from the base of $based"
  # shellcheck disable=SC2086
  "${train[@]}" --family "$based" --seeds 1 --from-base ${TRAIN:-}
  "$python" -m studies.gpu.answers runs/seeds/"$based"-1/sweep-from-base "${how[@]}"
done

#!/usr/bin/env bash
# Train the seeds of a built-in family on a GPU machine and answer their sweeps there, in calls of bounded time.
#
#   python -m studies.builtin.seeds sweep --family llada --stage prepare       # here, before there are models;
#   python -m studies.builtin.seeds sweep --family llada --seeds 1 --from-base --stage prepare    # then take runs/ along
#   OUT=back studies/gpu/seeds.sh start llada 560                              # there
#   OUT=back studies/gpu/seeds.sh wait llada 560                               # again, until it says `complete`
#
# The fine-tunes of the base follow for seed 1 of the families named in BASED, whose bases exist or are made here.
# `start` works on a copy of the tree, so that the tree may be sent again while it runs, and then waits. A call ends when
# everything is done, when the work has died, or after so many seconds; what there is by then lies in $OUT: models.tgz.*
# (parts of one archive), sweeps.tgz and logs.tgz. Unpacked here, `--stage judge` of the same two commands goes on.
set -euo pipefail
shopt -s nullglob
if [ $# -ne 3 ] || [[ ! $1 =~ ^(start|wait|pipeline)$ ]]; then
  echo "usage: OUT=FOLDER studies/gpu/seeds.sh start|wait FAMILY SECONDS" >&2
  exit 2
fi
command=$1 family=$2 seconds=$3
sweeps=(runs/seeds/"$family"-*/sweep)
if [ ${#sweeps[@]} -eq 0 ]; then
  echo "runs/seeds: no sweep of family $family is prepared; the head of this file has the commands" >&2
  exit 2
fi
python=${PYTHON:-python3} device=${DEVICE:-cuda} together=${TOGETHER:-5} logs=$PWD/runs/logs
work=${WORK:-/tmp/voidpad-seeds}
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# Without NVIDIA's multi-process service the kernels of several processes take turns; with it, small ones run side by side.
share_gpu() {
  export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps-log
  local probe='import torch; a = torch.ones(64, 64, device="cuda"); print("probe", (a @ a).sum().item())'
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  if nvidia-cuda-mps-control -d && timeout 60 "$python" -c "$probe"; then
    echo "$(date +%T) processes share the GPU: server $(echo get_server_list | nvidia-cuda-mps-control)"
  else
    echo "$(date +%T) processes take turns on the GPU"
    echo quit | timeout 10 nvidia-cuda-mps-control || true
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
}

pipeline() {
  if [ "${MPS:-}" = yes ]; then share_gpu 2>&1; fi
  local train=("$python" -m studies.builtin.seeds train --out runs/seeds --together "$together")
  local how=(--together 15 --device "$device" --rows 128 --tokens 65536)
  local workers=${WORKERS:-14} examples=${EXAMPLES:-1200000} names=${NAMES:-60000}
  echo "$(date +%T) data"
  if [ "$family" = dream ] && [ ! -f runs/tiny/names.safetensors ]; then
    "$python" -m studies.builtin.prepare --out runs/tiny/names.safetensors --examples "$names" --workers 2 --names
  fi
  if [ ! -f runs/tiny/data.safetensors ]; then
    "$python" -m studies.builtin.prepare --out runs/tiny/data.safetensors --examples "$examples" --workers "$workers"
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
  echo "$(date +%T) complete"
}

if [ "$command" = pipeline ]; then
  pipeline
  exit
fi

if [ "$command" = start ]; then
  mkdir -p "$logs" "$work"
  cp -r voidpad studies pyproject.toml "$work"
  if [ -d .carry ]; then cp -r .carry "$work"; fi
  if [ -d .git ]; then ln -sfn "$PWD/.git" "$work/.git"; fi # results name the commit they were made with
  ln -sfn "$PWD/runs" "$work/runs"
  cd "$work"
  if [ -d .carry/site ]; then export PYTHONPATH=$work/.carry/site; fi
  setsid bash studies/gpu/seeds.sh pipeline "$family" 0 > "$logs/pipeline.log" 2>&1 < /dev/null &
  echo $! > "$logs/pid"
  cd "$OLDPWD"
fi

begun=$SECONDS
while kill -0 "$(cat "$logs/pid")" 2> /dev/null && [ $((SECONDS - begun)) -lt "$seconds" ]; do
  sleep "${EVERY:-30}"
  echo "== $(date +%T) $(tail -n 1 "$logs/pipeline.log" | cut -c1-150)"
  for log in runs/seeds/"$family"-*/*/metrics.jsonl; do
    if [ -f "$log" ] && [ ! -d "$(dirname "$log")/model" ]; then echo "$log $(tail -n 1 "$log" | cut -c1-120)"; fi
  done
done
tail -n 12 "$logs/pipeline.log" | cut -c1-150
kill -0 "$(cat "$logs/pid")" 2> /dev/null || tail -n 1 "$logs/pipeline.log" | grep -q complete || echo "the work has died: see logs.tgz"

mkdir -p "$OUT"
models=(runs/seeds/"$family"-*/*/model runs/seeds/*/from_base_*/model runs/seeds/"$family"-*/prompts.jsonl)
if [ ${#models[@]} -gt 0 ]; then printf '%s\n' "${models[@]}" | sort -u | tar cf - -T - | gzip -1 | split -b 15000000 -d -a 1 - "$OUT/models.tgz."; fi
# A file that grows while it is packed is no failure: the next call packs it again.
find "${sweeps[@]}" runs/seeds/*/sweep-from-base -type f | tar czf "$OUT/sweeps.tgz" -T - || true
tar czf "$OUT/logs.tgz" runs/logs runs/seeds/*/*.log runs/seeds/*/*/metrics.jsonl || true
ls -l "$OUT"

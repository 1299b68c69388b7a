#!/usr/bin/env bash
# Run a long command on a GPU machine that is lent for minutes at a time, over several calls.
#
#   OUT=back studies/gpu/hold.sh start 560 'bash studies/gpu/builtin.sh train'   # on that machine
#   OUT=back studies/gpu/hold.sh wait 560                                        # again, until it says `complete`
#
# The command works on a copy of the tree, so that the tree may be sent again meanwhile; `runs` is the tree's own. A call
# ends when the command has ended, or after so many seconds. Every file under `runs` that is newer than the start then lies
# in $OUT, but for training checkpoints and the data of the built-in models: runs.tgz.0, .1 and so on are parts of one archive.
# With MPS=yes processes share the GPU through NVIDIA's multi-process service, where it can be started.
set -euo pipefail
shopt -s nullglob
if ! { [ "${1:-}" = start ] && [ $# -eq 3 ]; } && ! { [ "${1:-}" = wait ] && [ $# -eq 2 ]; }; then
  echo "usage: OUT=FOLDER studies/gpu/hold.sh start SECONDS COMMAND | wait SECONDS" >&2
  exit 2
fi
: "${OUT:?name the folder for what comes back}"
logs=runs/logs work=${WORK:-/tmp/voidpad-hold}

# Without the service the kernels of several processes take turns; with it, small ones run side by side.
share_gpu() {
  export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps-log
  local probe='import torch; a = torch.ones(64, 64, device="cuda"); print("probe", (a @ a).sum().item())'
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  if command -v nvidia-cuda-mps-control > /dev/null && { nvidia-cuda-mps-control -d || true; } && timeout 60 python3 -c "$probe"; then
    echo "processes share the GPU: server $(echo get_server_list | nvidia-cuda-mps-control)"
  else
    echo "processes take turns on the GPU"
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
}

if [ "$1" = start ]; then
  mkdir -p "$logs" "$work"
  rm -f "$logs/status"
  touch "$logs/started"
  cp -r voidpad studies pyproject.toml "$work"
  if [ -d .carry ]; then cp -r .carry "$work"; fi
  if [ -e .git ]; then ln -sfn "$PWD/.git" "$work/.git"; fi # results name the commit that they were made with
  ln -sfn "$PWD/runs" "$work/runs"
  cd "$work"
  export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
  if [ -d .carry/site ]; then export PYTHONPATH=$work/.carry/site; fi
  if [ "${MPS:-}" = yes ]; then share_gpu; fi
  setsid bash -c "($3); echo \$? > '$logs/status'" > "$logs/output.log" 2>&1 < /dev/null &
  cd "$OLDPWD"
fi

begun=$SECONDS
while [ ! -f "$logs/status" ] && [ $((SECONDS - begun)) -lt "$2" ]; do
  sleep "${EVERY:-30}"
  echo "== $(date +%T) $(tail -n 1 "$logs/output.log" | cut -c1-150)"
  find runs -name metrics.jsonl -mmin -1 | while read -r log; do echo "$log $(tail -n 1 "$log" | cut -c1-100)"; done
done
tail -n 12 "$logs/output.log" | cut -c1-150
if [ -f "$logs/status" ]; then echo "complete, with status $(cat "$logs/status")"; fi

mkdir -p "$OUT"
# A file that grows while it is packed is no failure: the next call packs it again.
find runs -type f -newer "$logs/started" -not -path '*/checkpoint-*' -not -name data.safetensors -not -name gaps.safetensors \
  | { tar czf - -T - || true; } | split -b 15000000 -d -a 1 - "$OUT/runs.tgz."
ls -l "$OUT"

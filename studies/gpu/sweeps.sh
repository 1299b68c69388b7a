#!/usr/bin/env bash
# Every sweep of the built-in models at the size of its recipe, for both families, on two machines.
#
#   bash studies/gpu/sweeps.sh prepare       # here, minutes on a CPU; also packs .carry/full.tgz
#   bash studies/gpu/sweeps.sh answer        # with a GPU; studies/gpu/hold.sh where it is lent for minutes
#   bash studies/gpu/sweeps.sh judge         # here, after what came back was unpacked: scores, pages and pictures
#   cp runs/full/report/*.png docs/img/
#
# On a machine that is lent, and over several calls:
#
#   tar xzf .carry/full.tgz && MPS=yes studies/gpu/hold.sh start 555 'bash studies/gpu/sweeps.sh answer'
#   studies/gpu/hold.sh wait 570             # again, until it says `complete`
#
# Each stage goes on where it was stopped. Judge and commit after every call: what was judged needs no GPU again. The
# recipes come in the order in which they are wanted, the paper's tables of both families first. RECIPES and LIMIT
# choose fewer recipes and problems, for a rehearsal.
set -euo pipefail
shopt -s nullglob
runs=${RUNS:-runs/full} python=${PYTHON:-python3}
paper=(appendix-blocks table3 thresholds canvas stress start window expansion-block table1 table4 table5 table6 early-rainbow eos-ban)
more=(score robustness where approximations seeds frontier commits rivals)
read -ra recipes <<< "${RECIPES:-${paper[*]} ${more[*]}}"
families=(llada dream)

report() { # family, name of the page, recipes: one page of those that were asked for
  local family=$1 page=$2 recipe sweeps=()
  for recipe in "${@:3}"; do
    if [[ " ${recipes[*]} " == *" $recipe "* ]]; then sweeps+=("$runs/$family/tiny-$recipe.sweep.json"); fi
  done
  if [ ${#sweeps[@]} -eq 0 ]; then return; fi
  "$python" -m voidpad report "${sweeps[@]}" --out "$runs/report/$page" --format md
  rm -f "$runs/report/$page"/figures/*.pdf
}

case "${1:-}" in
  prepare)
    for family in "${families[@]}"; do
      for recipe in "${recipes[@]}"; do
        "$python" -m voidpad sweep "tiny-$recipe" --family "$family" --out "$runs/$family" --stage prepare \
          ${LIMIT:+--limit "$LIMIT"} | tail -n 1
      done
    done
    mkdir -p .carry
    tar czf .carry/full.tgz "$runs"
    ls -l .carry/full.tgz
    ;;
  answer)
    wanted=()
    for recipe in "${recipes[@]}"; do
      for family in "${families[@]}"; do wanted+=("$runs/$family/tiny-$recipe.sweep.json"); done
    done
    "$python" -m studies.gpu.answers "${wanted[@]}" --together "${TOGETHER:-15}" --device "${DEVICE:-cuda}" --rows 128 --tokens 65536
    ;;
  judge)
    for family in "${families[@]}"; do
      for recipe in "${recipes[@]}"; do
        "$python" -m voidpad sweep "tiny-$recipe" --out "$runs/$family" --stage judge --allow-code-execution --workers 2 | tail -n 1 \
          || echo "tiny-$recipe, $family: not complete yet"
      done
      report "$family" "paper-$family" "${paper[@]}"
      for recipe in "${more[@]}"; do report "$family" "tiny-$recipe-$family" "$recipe"; done
    done
    "$python" -m studies.pictures.paper_pictures "$runs" "$runs/report" || true # names what is not there yet
    ;;
  *)
    echo "usage: bash studies/gpu/sweeps.sh prepare | answer | judge" >&2
    exit 2
    ;;
esac

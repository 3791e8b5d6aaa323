#!/usr/bin/env bash
# long.sh BINARY [JOBS]: 100,000 seeds with coverage, and every mutant within 200,000 seeds.
set -euo pipefail
binary=${1:?usage: long.sh BINARY [JOBS]}
jobs=${2:-2}
here=$(cd "$(dirname "$0")" && pwd)
seeds=${SWITCHYARD_LONG_SEEDS:-100000}
mutant_seeds=${SWITCHYARD_MUTANT_SEEDS:-200000}

"$binary" --regressions "$here/regressions.txt" --seeds "1..$seeds" --jobs "$jobs" --require-coverage 100

log=$(mktemp)
trap 'rm -f "$log"' EXIT
missed=0
while read -r mutant mix; do
  [[ -z $mutant || $mutant == \#* ]] && continue
  if "$binary" --mutant "$mutant" --mix "$mix" --seeds "1..$mutant_seeds" --jobs "$jobs" >"$log" 2>&1; then
    echo "mutant $mutant, mix $mix: not caught within $mutant_seeds seeds"
    missed=1
  else
    grep 'fails:' "$log" || { cat "$log"; missed=1; }
  fi
done <"$here/mutants.txt"
exit $missed

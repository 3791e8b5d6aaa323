#!/usr/bin/env bash
# Sets up, builds, and runs a sweep of Mixture-of-Experts language models on this machine's own text.
#
#   deploy/quickstart.sh [--keep]
#
# --keep   leave the coordinator and the worker running afterwards
#
# Everything it writes is under the build folder (SWITCHYARD_BUILD, default build/dev).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${SWITCHYARD_BUILD:-$root/build/dev}
keep=no
for argument in "$@"; do
  case $argument in
    --keep) keep=yes ;;
    -h|--help) sed -n '2,8p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "quickstart: unknown argument '$argument'; known: --keep" >&2; exit 1 ;;
  esac
done

"$root/deploy/setup.sh"
mkdir -p "$build"
(cd "$root" && cmake --preset dev -B "$build") >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build" --target switchyard switchyard-coordinator switchyard-worker switchyard-trainer

state=$build/quickstart
bin=$build/bin
# A unix socket's path may have 107 characters; build folders can be deeper than that.
socket=$state/switchyard.sock
[ ${#socket} -le 100 ] || socket=$(mktemp -d)/switchyard.sock

if [ -e "$state/pids" ]; then
  while read -r pid; do kill "$pid" 2>/dev/null || true; done <"$state/pids"
  for _ in $(seq 100); do
    alive=no
    while read -r pid; do kill -0 "$pid" 2>/dev/null && alive=yes; done <"$state/pids"
    [ "$alive" = yes ] || break
    sleep 0.1
  done
fi
rm -rf "$state"
mkdir -p "$state"

stop() {
  [ -e "$state/pids" ] || return 0
  SWITCHYARD_SERVER=unix:$socket "$bin/switchyard" cancel all --reason "quickstart stops" >/dev/null 2>&1 || true
  tac "$state/pids" | while read -r pid; do kill "$pid" 2>/dev/null || true; done
  rm -f "$state/pids"
}
if [ "$keep" = no ]; then
  trap stop EXIT
fi
trap 'exit 130' INT TERM

wait_for() {  # FILE PID LOG
  for _ in $(seq 300); do
    [ -e "$1" ] && return 0
    kill -0 "$2" 2>/dev/null || { echo "quickstart: a program ended at once; its log:" >&2; cat "$3" >&2; exit 3; }
    sleep 0.1
  done
  echo "quickstart: no $1 after 30 s; see $3" >&2
  exit 3
}
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get(sys.argv[2], ""))' "$1" "$2"; }

"$bin/switchyard-coordinator" serve --data-dir "$state/coordinator" --socket "$socket" --metrics 127.0.0.1:0 \
  >"$state/coordinator.log" 2>&1 &
coordinator=$!
echo "$coordinator" >>"$state/pids"
wait_for "$state/coordinator/ready.json" "$coordinator" "$state/coordinator.log"

"$bin/switchyard-worker" run --server "unix:$socket" --state-dir "$state/worker" --slots 2 --cores-per-slot 1 \
  --metrics 127.0.0.1:0 >"$state/worker.log" 2>&1 &
worker=$!
echo "$worker" >>"$state/pids"
wait_for "$state/worker/ready.json" "$worker" "$state/worker.log"

export SWITCHYARD_SERVER=unix:$socket
cat <<INFO

coordinator  unix:$socket
  metrics    http://$(field "$state/coordinator/ready.json" metrics)/metrics
worker       2 slots of one core
  metrics    http://$(field "$state/worker/ready.json" metrics)/metrics
dashboards   $root/deploy/grafana/dashboards/ (Grafana), rules in $root/deploy/prometheus/
logs         $state/coordinator.log $state/worker.log

INFO

"$bin/switchyard" submit "$root/deploy/examples/quickstart.yaml"
start=$(date +%s)
"$bin/switchyard" watch last
"$bin/switchyard" wait last
echo
"$bin/switchyard" results last
echo
echo "bits per byte on the last tenth of each domain:"
"$bin/switchyard" results last --metric valid/c/bits_per_byte --metric valid/english/bits_per_byte \
  --metric valid/python/bits_per_byte
echo
echo "took $(($(date +%s) - start)) s; ask again with:"
echo "  SWITCHYARD_SERVER=$SWITCHYARD_SERVER $bin/switchyard results last --by cell"
if [ "$keep" = yes ]; then
  echo "coordinator (pid $coordinator) and worker (pid $worker) keep running; stop them with: kill $worker $coordinator"
else
  echo "coordinator and worker stop now; --keep leaves them running"
fi

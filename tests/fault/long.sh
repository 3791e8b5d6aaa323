#!/usr/bin/env bash
# The long form of the fault tests, some hours on two cores: tests/fault/long.sh BUILD_DIR [TEST ...]
# A TEST is as for unittest (test_worker.Kills.test_agent); none means all. What each of them counted
# is printed as a table at the end; logs stay in BUILD_DIR/fault-long. Status 1: something failed.
set -euo pipefail
if [ $# -lt 1 ] || [ ! -x "$1/bin/switchyard-coordinator" ]; then
  echo "usage: tests/fault/long.sh BUILD_DIR [TEST ...], BUILD_DIR with bin/switchyard-coordinator" >&2
  exit 2
fi
build=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")"
if [ $# -eq 0 ]; then
  set -- test_coordinator.RandomKills test_coordinator.Failpoints \
    test_worker.Kills.test_agent test_worker.Kills.test_fork_server test_worker.Kills.test_trainer \
    test_worker.Kills.test_agent_and_trainer test_worker.EndOfTrainer test_worker.Outage test_worker.Pauses \
    test_launch test_fence.SelfFence test_fence.CoordinatorPause \
    test_network.LostReplies test_network.Silence test_network.Ends \
    test_crowd.Sqlite test_crowd.Stop test_crowd.Big
fi
export SWITCHYARD_BUILD_DIR=$build SWITCHYARD_FAULT_LONG=1 PYTHONDONTWRITEBYTECODE=1
logs=$build/fault-long
mkdir -p "$logs"
status=0
table=""
for name in "$@"; do
  start=$SECONDS
  result=ok
  python3 -m unittest -v "$name" >"$logs/$name.log" 2>&1 || { result=FAILED; status=1; }
  # Figures are the lines that a test prints: they start with a number or "longest", "replaced".
  figures=$(grep -E "^([0-9]+ (kills|failpoints|launches|trainers|replies)|longest|replaced)" "$logs/$name.log" | paste -sd';' || true)
  line=$(printf "%-40s %-6s %6d s  %s" "$name" "$result" "$((SECONDS - start))" "$figures")
  echo "$line"
  table+="$line"$'\n'
done
printf "\n%-40s %-6s %8s  %s\n%s" test result time counted "$table"
exit $status

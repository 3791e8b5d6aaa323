#!/usr/bin/env bash
# The long form of the fault tests, with a table of what was counted: tests/fault/long.sh BUILD_DIR [--jobs N] [TEST ...]
set -euo pipefail
exec nice -n 5 python3 "$(dirname "$0")/run.py" "${1:?usage: tests/fault/long.sh BUILD_DIR [--jobs N] [TEST ...]}" --long --jobs 4 "${@:2}"

#!/usr/bin/env bash
# The long form of the fault tests, with a table of what was counted: tests/fault/long.sh BUILD_DIR [TEST ...]
set -euo pipefail
exec python3 "$(dirname "$0")/run.py" "${1:?usage: tests/fault/long.sh BUILD_DIR [TEST ...]}" --long --jobs 2 "${@:2}"

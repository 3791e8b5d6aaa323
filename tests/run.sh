#!/usr/bin/env bash
# Sets up, builds and runs all tests; closes with "N passed, N failed, N skipped".
#
#   tests/run.sh [ctest arguments, for instance -L fast]
#
# SWITCHYARD_BUILD names the build folder (default build/dev), SWITCHYARD_JOBS the compile jobs.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
build=${SWITCHYARD_BUILD:-$root/build/dev}
jobs=${SWITCHYARD_JOBS:-$(nproc)}

deploy/setup.sh
mkdir -p "$build"
cmake --preset dev -B "$build" >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
grep -E '^-- GPU parts' "$build/configure.log" || true
cmake --build "$build" -j "$jobs"

log=$build/tests.log
status=0
# Two at a time at most: the torch tests would otherwise fight for cores and memory.
ctest --test-dir "$build" -j 2 --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log" || status=$?

python3 - "$log" <<'PY'
import re, sys
text = open(sys.argv[1], errors="replace").read()
passed = len(re.findall(r"^ *\d+/\d+ Test +#\d+: .* Passed ", text, re.M))
skipped = len(re.findall(r"^ *\d+/\d+ Test +#\d+: .*\*\*\*Skipped", text, re.M))
failed = len(re.findall(r"^ *\d+/\d+ Test +#\d+: ", text, re.M)) - passed - skipped
print(f"{passed} passed, {failed} failed, {skipped} skipped")
PY
exit "$status"

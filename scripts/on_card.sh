#!/usr/bin/env bash
# Validates and benchmarks everything on a Tenstorrent card: device tests, then accuracy, stages and latency.
# Writes build/on_card/tests.txt, report.json and report.md. Options go to ttsp_ros.tools.on_card. See docs/on_card.md.
set -uo pipefail
cd "$(dirname "$0")/.."
make setup || exit
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if ! compgen -G '/dev/tenstorrent/*' >/dev/null; then
    echo "on_card: no card: nothing in /dev/tenstorrent (is it plugged in, and the driver tt-kmd loaded?)" >&2
    exit 1
fi
mkdir -p build/on_card
.venv/bin/python -m pytest --card --device-full test/simulator test/tenstorrent 2>&1 | tee build/on_card/tests.txt
tests=${PIPESTATUS[0]}
.venv/bin/python -m ttsp_ros.tools.on_card "$@"
report=$?
echo "device tests: exit status $tests (build/on_card/tests.txt); report: exit status $report (2: an aim was missed)"
[ "$tests" = 0 ] && [ "$report" = 0 ]

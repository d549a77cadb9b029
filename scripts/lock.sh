#!/usr/bin/env bash
# Writes requirements/lock.txt, the closure of requirements/direct.in, without installing anything.
set -euo pipefail
cd "$(dirname "$0")/.."
report=$(mktemp)
trap 'rm -f "$report"' EXIT
.venv/bin/python -m pip install --quiet --dry-run --ignore-installed --report "$report" --requirement requirements/direct.in
.venv/bin/python - "$report" >requirements/lock.txt <<'PY'
import json
import sys

with open(sys.argv[1]) as report:
    packages = [item["metadata"] for item in json.load(report)["install"]]
print("# The tested closure of direct.in, written by `make lock`.")
for package in sorted(packages, key=lambda package: package["name"].lower()):
    if package["name"] != "setuptools":  # colcon needs an older one, see scripts/setup.sh
        print(f"{package['name']}=={package['version']}")
PY

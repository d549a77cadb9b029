#!/usr/bin/env bash
# What ttnn starts as its simulator: Wolfpine's Blackhole under ttsp_ros/simulator/server.py.
set -euo pipefail
export PYTHONPATH="$TTSP_SIMULATOR_PYTHONPATH${PYTHONPATH:+:$PYTHONPATH}"
exec "$WOLFPINE_PYTHON" -u -m ttsp_ros.simulator.server

#!/usr/bin/env bash
# Makes .venv ready for make demo, test and bench; a second run has nothing to do and takes a moment.
#
# The environment itself lives outside the checkout, one per lock file, so that another clone finds it ready:
#   ${XDG_CACHE_HOME:-~/.cache}/ttsp_ros/env-<key>      (about 6 GB: torch and ttnn)
# In a shell where ROS is sourced its rclpy, messages and cv_bridge are used instead of the wheels from PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in python3.12 /usr/bin/python3.12 /usr/local/bin/python3.12 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12 /opt/python3.12/bin/python3.12; do
        # A pyenv shim exists on the path even where its Python is not active, so ask each to run.
        if "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "Python 3.12 was not found. Install it: 'sudo apt-get install python3.12 python3.12-venv' (Ubuntu 24.04)
       or 'pyenv install 3.12', then run this again."
}

ros_sourced() { [ -n "${ROS_DISTRO:-}" ] && "$python" -c 'import rclpy' 2>/dev/null; }

python=$(find_python)
wheels=requirements/lock.txt
site=()
if ros_sourced; then
    say "ROS $ROS_DISTRO is sourced: its rclpy, messages and cv_bridge are used"
    wheels=$(mktemp)
    trap 'rm -f "$wheels"' EXIT
    grep -vE '^(ros-|cv-bridge==)' requirements/lock.txt >"$wheels"
    site=(--system-site-packages)
fi

key=$(cat "$wheels" requirements/no_deps.in <("$python" -VV) <(echo "${site[*]-}") | sha256sum | cut -c1-12)
home=${XDG_CACHE_HOME:-$HOME/.cache}/ttsp_ros
env=$home/env-$key
mkdir -p "$home"

install_environment() {
    say "installing the environment into $env (about 6 GB, some minutes)"
    rm -rf "$env"
    "$python" -m venv "${site[@]}" "$env"
    "$env/bin/python" -m pip install --quiet 'setuptools>=68,<80' # before the rest: colcon needs an older one
    # The lock is a whole closure: resolving it again could only change it.
    "$env/bin/python" -m pip install --quiet --no-deps --requirement "$wheels"
    "$env/bin/python" -m pip install --quiet --no-deps --requirement requirements/no_deps.in
    touch "$env/.complete"
}

exec 9>"$home/setup.lock"
flock 9
[ -e "$env/.complete" ] || install_environment
[ "$(readlink .venv 2>/dev/null)" = "$env" ] || { rm -rf .venv; ln -s "$env" .venv; }

.venv/bin/python -m ttsp_ros.simulator setup ||
    say "no simulated Blackhole: device tests cannot run until that is mended, everything else does"
.venv/bin/python -m ttsp_ros.tools.weights

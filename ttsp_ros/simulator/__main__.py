"""`python -m ttsp_ros.simulator setup | run | doctor`: see docs/simulator.md."""

from __future__ import annotations

import argparse
import os
import sys

from ttsp_ros.simulator.doctor import findings
from ttsp_ros.simulator.environment import HANG_SECONDS, P150, Grid, variables
from ttsp_ros.simulator.toolchain import SimulatorError, prepare


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.action(options)
    except SimulatorError as error:
        print(f"simulator: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ttsp_ros.simulator", description="A simulated Blackhole for ttnn.")
    actions = parser.add_subparsers(required=True)
    setup = actions.add_parser("setup", help="prepare the kernel compiler; takes a moment when it is ready")
    setup.set_defaults(action=_setup)
    run = actions.add_parser("run", help="run a command whose ttnn sees a simulated Blackhole")
    run.add_argument("--grid", type=Grid.parse, default=P150, help="worker grid, columns x rows (default %(default)s)")
    run.add_argument("--cycles", action="store_true", help="simulate modelled cycles: about 4 times slower")
    run.add_argument(
        "--timeout", type=float, default=HANG_SECONDS, help="seconds after which a launch hangs (default %(default)g)"
    )
    run.add_argument("--hollow", action="store_true", help="empty compute kernels: for graph capture without dispatch")
    run.add_argument("command", nargs="+", help="after --, the command and its arguments")
    run.set_defaults(action=_run)
    doctor = actions.add_parser("doctor", help="say what is there, whether it was tested together, and what is wrong")
    doctor.set_defaults(action=_doctor)
    return parser


def _setup(_: argparse.Namespace) -> int:
    prepare(install_packages=True)
    return 0


def _doctor(_: argparse.Namespace) -> int:
    good = True
    for finding in findings():
        good &= finding.good
        print(f"{'' if finding.good else '!!'}\t{finding.what}: {finding.found}", flush=True)
    return 0 if good else 1


def _run(options: argparse.Namespace) -> int:
    environment = variables(options.grid, options.cycles, options.timeout, options.hollow)
    sys.stdout.flush()
    try:
        os.execvpe(options.command[0], options.command, os.environ | environment)
    except OSError as error:
        raise SimulatorError(f"cannot run {options.command[0]}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

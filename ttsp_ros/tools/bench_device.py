"""`make bench-device`: modelled cycles of the kernels on a simulated Blackhole, into build/bench/device.json.

Every module ttsp_ros/tools/bench_device_<section>.py with a function `measure_section(device)` is a section: what the
function returns is the section's value. Cycles are Wolfpine's cost model's, a floor made of what the ISA documentation
publishes: they compare designs, they are no times on a card.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from pathlib import Path

from ttsp_ros import tools
from ttsp_ros.simulator.environment import P150, Grid
from ttsp_ros.simulator.session import open_device

PREFIX = "bench_device_"
OUTPUT = Path("build/bench/device.json")


def section_names() -> list[str]:
    """Sections that there are, in alphabetical order."""
    names = (module.name for module in pkgutil.iter_modules(tools.__path__))
    return [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]


def main(arguments: list[str]) -> int:
    available = section_names()
    parser = argparse.ArgumentParser(prog="bench_device", description=__doc__.partition("\n")[0])
    parser.add_argument("sections", nargs="*", choices=[*available, []], help=f"of {available}; all by default")
    parser.add_argument("--grid", type=Grid.parse, default=P150, help="worker grid (default %(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="default %(default)s; other sections are kept")
    options = parser.parse_args(arguments)
    results = json.loads(options.output.read_text()) if options.output.exists() else {}
    with open_device(options.grid, cost_model=True) as device:
        for name in options.sections or available:
            print(f"{name}, on a simulated Blackhole of {options.grid} cores:", flush=True)
            module = importlib.import_module(f"{tools.__name__}.{PREFIX}{name}")
            results[name] = module.measure_section(device)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m ttsp_ros.dit.megakernel show n17`: the plan of the DiT megakernel, without a card and without ttnn."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from ttsp_ros.dit.config import config_of
from ttsp_ros.dit.megakernel import overview
from ttsp_ros.dit.megakernel.arena import KEY_LENGTHS, READER_MODES, STREAM_DTYPES, TILE_ORDERS, ArenaLayout
from ttsp_ros.dit.megakernel.buffers import SHAPES
from ttsp_ros.dit.megakernel.core_map import core_map
from ttsp_ros.dit.megakernel.program_spec import ProgramSpec, build_spec
from ttsp_ros.dit.megakernel.tensors import VARIANTS


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        spec = _spec(options)
    except ValueError as error:
        print(f"megakernel: {error}", file=sys.stderr)
        return 1
    print(overview.text(spec))
    if options.png:
        overview.draw(spec, options.png)
        print(f"\npicture: {options.png}")
    if options.manifest:
        options.manifest.write_text(json.dumps(spec.manifest(), indent=1) + "\n", encoding="utf-8")
        print(f"\nmanifest: {options.manifest}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ttsp_ros.dit.megakernel", description=__doc__)
    show = parser.add_subparsers(required=True).add_parser("show", help="print the plan, and draw it with --png")
    show.add_argument("version", help="n1.5, n1.6, n1.7 or n15, n16, n17")
    show.add_argument("--png", type=Path, metavar="FILE", help="draw core map, traffic and memory (needs matplotlib)")
    show.add_argument("--manifest", type=Path, metavar="FILE", help="write the whole program as JSON")
    show.add_argument("--grid", default="11x10", help="worker cores of the card, columns x rows (default %(default)s)")
    show.add_argument("--blocks", type=int, help="plan the first blocks only")
    show.add_argument("--dtype", choices=STREAM_DTYPES, default="bfp8_b", help="of block weights (default %(default)s)")
    show.add_argument("--variant", choices=VARIANTS, default="steps4", help="(default %(default)s)")
    show.add_argument("--shape", choices=SHAPES, default="full", help="(default %(default)s)")
    show.add_argument("--reader-mode", choices=READER_MODES, default="direct", help="(default %(default)s)")
    show.add_argument("--tile-order", choices=TILE_ORDERS, default="kn", help="(default %(default)s)")
    return parser


def _spec(options: argparse.Namespace) -> ProgramSpec:
    config = config_of(options.version)
    keys = KEY_LENGTHS[config.version]
    if options.blocks is not None:
        config = replace(config, n_blocks=options.blocks)
    layout = ArenaLayout(
        config, keys, dtype_stream=options.dtype, reader_mode=options.reader_mode, tile_order=options.tile_order
    )
    try:
        columns, rows = (int(number) for number in options.grid.split("x"))
    except ValueError:
        raise ValueError(f"--grid: got {options.grid!r}, must be like 11x10") from None
    return build_spec(layout, core_map(layout, (columns, rows)), options.variant, shape=options.shape)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

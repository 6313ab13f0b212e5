"""Times of every way of every kind of call over a grid of shapes on the CPU, for docs/results/speed.md.

    python benchmarks/grid.py --json FILE [--compiled]

Ours ("dense", "sdpa"), PyTorch's attention with and without an N × N bias, and the plain formula take turns
in one process; times are medians in milliseconds. Half an hour on two cores. Cells that the file has are not
measured again.

With `--compiled` what torch.compile makes of the plain formula, and FlexAttention, take part, too, in float32
over fewer shapes: every call is compiled, in two to ten seconds.
"""

import argparse
import itertools
import json
import math
from pathlib import Path
from typing import Any

import torch

from nadaraya.attention import measured
from nadaraya.checking import grid
from nadaraya.device import reuse_freed_memory
from nadaraya.files import write_file

SIZES = ((1, 4), (1, 12), (16, 4), (16, 12))  # batch, heads
TOKENS, WIDTHS = (64, 128, 256, 512, 1024, 2048), (16, 32, 64, 128)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KINDS = ("bank", "Gaussian", "excluded self", "key bias", "window", "mixed logits", "decoding")
LARGEST = 2**25  # scores of a call: more would take N × N ways gigabytes
LONG = ("float32", 64, 8192, (1, 4))  # but for this one


def main() -> None:
    """Measure what the file lacks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    reuse_freed_memory()
    where = torch.device("cpu")
    found: dict[str, Any] = {"identity": measured.identity(where), "cells": []}
    if options.json.is_file():
        found = json.loads(options.json.read_text(encoding="utf-8"))
    cells = list(itertools.product(DTYPES, WIDTHS, TOKENS, SIZES))
    if options.compiled:
        cells = list(itertools.product(("float32",), (64,), (64, 256, 1024), SIZES))
    cells = [cell for cell in cells if math.prod(cell[3]) * cell[2] ** 2 <= LARGEST]
    for dtype, width, tokens, (batch, heads) in cells if options.compiled else [*cells, LONG]:
        shape = {"dtype": dtype, "batch": batch, "heads": heads, "keys": tokens, "width": width}
        if any(shape.items() <= cell.items() for cell in found["cells"]):
            continue
        for feature in KINDS:
            for gradients in (False,) if feature == "decoding" else (False, True):
                kind = grid.kind_of(feature, DTYPES[dtype], width, gradients)
                rows, _ = grid.time_ways(kind, (batch, heads, tokens), where, set(), options.compiled)
                cell = rows[0].model_dump(exclude={"way", "ms"})
                found["cells"].append(cell | {"ms": {row.way: float(f"{row.ms:.4g}") for row in rows}})
        print(shape, flush=True)
        lines = ",\n".join(map(json.dumps, found["cells"]))
        write_file(options.json, f'{{"identity": {json.dumps(found["identity"])}, "cells": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()

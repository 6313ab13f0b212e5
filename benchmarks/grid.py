"""Times of every way of every kind of call over a grid of shapes on the CPU, for docs/results/speed.md.

    python benchmarks/grid.py --json FILE

Ours ("dense", "sdpa"), PyTorch's attention with and without an N × N bias, and the plain formula take turns
in one process; a row is a median in milliseconds. Minutes on two cores. Cells that the file has are not
measured again.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch

from nadaraya.attention import measured
from nadaraya.checking import grid
from nadaraya.files import write_file

SIZES = ((1, 4), (1, 12), (16, 4), (16, 12))  # batch, heads
TOKENS, WIDTHS = (64, 128, 256, 512, 1024, 2048), (32, 128)
KINDS = ("bank", "Gaussian", "excluded self", "key bias", "window", "mixed logits", "decoding")
LARGEST = 2**25  # scores of a call: more would take N × N ways gigabytes


def main() -> None:
    """Measure what the file lacks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tokens", help="sequence lengths, separated by commas; default all")
    options = parser.parse_args()
    where = torch.device("cpu")
    found: dict[str, Any] = {"identity": measured.identity(where), "rows": []}
    if options.json.is_file():
        found = json.loads(options.json.read_text(encoding="utf-8"))
    lengths = [int(each) for each in options.tokens.split(",")] if options.tokens else TOKENS
    for tokens, width, (batch, heads) in itertools.product(lengths, WIDTHS, SIZES):
        if batch * heads * tokens**2 > LARGEST:
            continue
        shape = {"batch": batch, "heads": heads, "keys": tokens, "width": width}
        if any(shape.items() <= row.items() for row in found["rows"]):
            continue
        for feature in KINDS:
            for gradients in (False,) if feature == "decoding" else (False, True):
                kind = grid.kind_of(feature, torch.float32, width, gradients)
                rows, _ = grid.time_ways(kind, (batch, heads, tokens), where, set())
                found["rows"] += [row.model_dump(mode="json") for row in rows]
        print(shape, flush=True)
        write_file(options.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

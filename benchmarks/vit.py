"""DeiT against GKA in timm's shapes: images a second and peak memory, document D's table 4 on one device.

    python benchmarks/vit.py --json FILE [--sizes tiny small base] [--device cpu|cuda] [--compile]

The work is that of `nadaraya bench vit`, one size after the other: training updates at batch sizes 64 and
128, inference at 32 to 512, the models taking turns in one process; bfloat16 on a GPU, float32 on the CPU.
FILE (benchmarks/results/DEVICE/vit.json for what is kept) is rewritten after every cell. At the end stand
the targets.

--quick takes tiny images, two blocks and small batches: it shows that the script works and measures nothing.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from tables import targets_text
from vit_tables import vit_text
from vit_targets import judge

from nadaraya.errors import InputError
from nadaraya.evaluation.throughput import BATCH_SIZES, SIZES, TRAIN_BATCH_SIZES, Grid, deit_and_gka, measure
from nadaraya.evaluation.timing import environment, write_json

QUICK: dict[str, Any] = {
    "batch_sizes": (2, 4),
    "train_batch_sizes": (2,),
    "rounds": 2,
    "warmup": 0,
    "image_size": 32,
    "options": {"depth": 2, "num_classes": 10},
}


def main() -> None:
    options = _options()
    cuda = options.device == "cuda"
    results: dict[str, Any] = {
        "environment": environment(),
        "settings": {"device": options.device, "compiled": options.compile, "counts": not options.quick},
        "sizes": {},
        "targets": [],
    }
    given = {
        "batch_sizes": options.batch_sizes,
        "train_batch_sizes": options.train_batch_sizes,
        "rounds": options.rounds,
    }
    for size in options.sizes:

        def save(part: dict[str, Any], size: str = size) -> None:
            results["sizes"][size] = part
            results["targets"] = judge(results)
            if options.json:
                write_json(options.json, results)

        grid = Grid(
            deit_and_gka(size),
            device=options.device,
            precision=options.precision or ("bfloat16" if cuda else "float32"),
            compiled=options.compile,
            memory=options.memory,
            **(QUICK if options.quick else given),
        )
        measure(grid, lambda line: print(line, file=sys.stderr, flush=True), save)
        print(vit_text(size, results["sizes"][size]), end="\n\n", flush=True)
    print(targets_text(results["targets"]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("bfloat16", "float32"))
    parser.add_argument("--compile", action="store_true", help="both models through torch.compile")
    parser.add_argument("--batch-sizes", nargs="*", type=int, default=BATCH_SIZES)
    parser.add_argument("--train-batch-sizes", nargs="*", type=int, default=TRAIN_BATCH_SIZES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave peak memory out")
    parser.add_argument("--quick", action="store_true", help="tiny: to see the script work")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("vit.py: no CUDA device here; accepted is --device cpu", file=sys.stderr)
        sys.exit(2)
    return options


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"vit.py: {error}", file=sys.stderr)
        sys.exit(2)

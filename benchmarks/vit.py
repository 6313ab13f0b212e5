"""DeiT against GKA in timm's shapes: throughput and peak memory, Kundu et al. (2026), table 4 on one device.

    python benchmarks/vit.py --json FILE [--sizes tiny small base] [--device cpu|cuda] [--compile]

The work is that of `nadaraya bench vit`, one size after the other: training updates at batch sizes 64 and
128, inference at 32 to 512; bfloat16 on a GPU, float32 on the CPU. FILE (benchmarks/results/DEVICE/vit.json
for what is kept) is rewritten as figures come. docs/development/targets.md has the targets.

--best also measures the form of Gaussian attention that reached the highest accuracy, of
experiments/vision.py: leave-one-out, with a kernel of the patch grid, σ per channel and a shift.

--quick takes tiny images, two blocks and small batches: it shows that the script works and measures nothing.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
from tables import markdown
from timing import environment, write_json
from timm.models import register_model

from nadaraya.errors import InputError
from nadaraya.evaluation.throughput import (
    BATCH_SIZES,
    SIZES,
    Settings,
    Throughput,
    deit_and_gka,
    measure,
    peaks,
)

QUICK: dict[str, Any] = {
    "rounds": 2,
    "seconds": 0.01,
    "image_size": 32,
    "options": {"depth": 2, "num_classes": 10},
}


def main() -> None:
    options = _options()
    settings = Settings(
        device=options.device,
        precision="bfloat16" if options.device == "cuda" else "float32",
        compiled=options.compile,
        memory=options.memory,
        **(QUICK if options.quick else {"rounds": options.rounds}),
    )
    cells = [("training", batch) for batch in ((2,) if options.quick else options.train_batch_sizes)]
    cells += [("inference", batch) for batch in ((2, 4) if options.quick else options.batch_sizes)]
    results: dict[str, Any] = {"environment": environment(), "settings": asdict(settings), "rows": []}
    for size in options.sizes:
        rows: list[Throughput] = []
        models = [*deit_and_gka(size), *([_best(size, settings.image_size)] if options.best else [])]
        for mode, batch in cells:
            print(f"{size}: {mode}, batch {batch}", file=sys.stderr, flush=True)
            rows += measure(models, mode, batch, settings)
        results["rows"] += [asdict(row) for row in rows + peaks(rows)]
        if options.json:
            write_json(options.json, results)
    print(rows_text(results["rows"]))


def rows_text(rows: list[dict[str, Any]]) -> str:
    """A Markdown table, then why models failed.

    Args:
        rows: `Throughput` as dictionaries.

    Returns:
        Markdown.
    """
    header = ["model", "mode", "batch", "images/s", "quartiles", "throughput", "MiB", "memory"]
    cells = [
        [
            row["model"],
            row["mode"],
            str(row["batch"]),
            f"{row['images_per_second']:.1f}",
            f"{row['low']:.1f}–{row['high']:.1f}",
            "" if row["speed_ratio"] is None else f"{row['speed_ratio']:.2f}×",
            "" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}",
            "" if row["memory_ratio"] is None else f"{row['memory_ratio']:.2f}×",
        ]
        for row in rows
        if row["failed"] is None
    ]
    failures = [
        f"- {row['model']}, {row['mode']}, batch {row['batch']}: {row['failed']}"
        for row in rows
        if row["failed"] is not None
    ]
    return "\n".join([markdown(header, cells), *failures])


def _best(size: str, image_size: int | None) -> str:
    """The name in timm of GKA's model with the best form of attention."""

    def create(pretrained: bool = False, **options: Any) -> Any:
        attention = {"grid_kernel": "bank", "per": "channel", "shift": True}
        name, options["img_size"] = f"gka_{size}_patch16_224", image_size or 224
        return timm.create_model(name, pretrained, variant="gka-loo", variant_options=attention, **options)

    create.__name__ = f"gka_loo_grid_channel_shift_{size}"
    register_model(create)
    return create.__name__


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--best", action="store_true", help="also the most accurate form of Gaussian attention"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="compile both models with torch.compile")
    parser.add_argument("--batch-sizes", nargs="*", type=int, default=BATCH_SIZES["inference"])
    parser.add_argument("--train-batch-sizes", nargs="*", type=int, default=BATCH_SIZES["training"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave peak memory out")
    parser.add_argument("--quick", action="store_true", help="tiny: to see the script work")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"vit.py: {error}", file=sys.stderr)
        sys.exit(2)

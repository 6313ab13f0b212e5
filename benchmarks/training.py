"""Short trainings of the character model of Bunks et al. (2025) on Dickens: losses and speed by variant.

    python benchmarks/training.py --data FOLDER [--json FILE] [--steps 1000] [--variants rope gpa-rope …]

The recipe is `dickens` (12.7 M parameters, batch 256 × 256 characters, bfloat16 on a GPU) on the first eight
novels, cut to `--steps` updates: it compares variants on equal terms and is no full training. FOLDER holds
what `nadaraya data dickens --from FOLDER` takes. Run folders are temporary.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from step import known_variant
from timing import environment, one_line, write_json

from nadaraya.data import fetch_dickens
from nadaraya.training import load_recipe, train

FIRST_EIGHT_NOVELS = 12_933_747  # characters


def short_run(variant: str, steps: int, corpus: Path, folder: Path, changes: list[str]) -> dict[str, Any]:
    """Curves, final figures and ms/step of one variant."""
    overrides = [
        f"model.variant={variant}",
        f"data.corpus={corpus}",
        f"data.limit={FIRST_EIGHT_NOVELS}",
        f"training.steps={steps}",
        f"training.warmup_steps={steps // 10}",
        f"training.evaluate_every={max(1, steps // 10)}",
        f"training.checkpoint_every={steps}",
        "training.sample_characters=500",
        *changes,
    ]
    run = train(load_recipe("dickens", overrides), folder / variant, progress=False)
    return {
        "final": run.final,
        "validation": [[record["step"], record["loss"]] for record in run.series("validation")],
        "train": [[record["step"], record["loss"], record["seconds"]] for record in run.series("train")],
        "sample": run.sample,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--variants",
        nargs="+",
        type=known_variant,
        default=["rope", "gpa-rope", "gpa-mul", "gka-loo-bank"],
        metavar="VARIANT",
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="recipe keys to change")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after every variant")
    options = parser.parse_args()
    results: dict[str, Any] = {"environment": environment(), "steps": options.steps, "runs": {}}
    with tempfile.TemporaryDirectory() as scratch:
        corpus = fetch_dickens(Path(scratch), source_folder=options.data)
        for variant in options.variants:
            print(f"{variant}: {options.steps} updates", flush=True)
            try:
                result = short_run(variant, options.steps, corpus, Path(scratch), options.set)
                print(f"{variant}: validation loss {result['final']['loss']:.4f} nats/token", flush=True)
            except Exception as error:  # the other variants are still worth having
                result = {"failed": one_line(error)}
                print(f"{variant}: {result['failed']}", flush=True)
            results["runs"][variant] = result
            if options.json:
                write_json(options.json, results)


if __name__ == "__main__":
    main()

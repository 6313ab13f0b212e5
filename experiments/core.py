"""Train a small KernelGPT on plain text and run CORE's tasks on it, against guesses at random.

    python experiments/core.py --corpus wiki.txt --tasks ../shared/data/core_tasks --run runs/core

About five minutes of one processor to train and as many to evaluate. The run folder is kept: a second call
evaluates it again. Writes core.json into --out, by default experiments/results/core.
"""

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from nadaraya.evaluation.core import evaluate_core, read_core
from nadaraya.files import write_file
from nadaraya.training import Run, load_recipe, train

RECIPE = (
    "data.limit=8000000",
    "data.tokenizer=bpe",
    "data.vocabulary=2048",
    "data.context=512",
    "training.steps=600",
    "training.batch_size=4",
    "training.warmup_steps=40",
    "training.evaluate_every=100",
)


def core_of(run: Run, tasks: Path, limit: int) -> dict[str, Any]:
    """CORE's figures of a run, with what they depend on."""
    recipe, final = run.text_recipe(), run.final or {}
    evaluation = evaluate_core(
        run.load_model(),
        run.tokenizer(),
        read_core(tasks),
        context=recipe.data.context,
        limit=limit,
        progress=lambda task, done, total: print(task, total) if done == total else None,
    )
    return {
        "model": {
            "variant": recipe.label,
            "parameters": final["parameters"],
            "training_tokens": recipe.training.steps * recipe.training.batch_size * recipe.data.context,
            "context": recipe.data.context,
            "bits_per_byte": final["bits_per_byte"],
        },
        **evaluation.figures(),
    }


def main() -> None:
    """Train where the folder has no run yet, evaluate, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", required=True, help="a text file or folder")
    parser.add_argument("--tasks", type=Path, required=True, help="a folder with CORE's tasks")
    parser.add_argument("--run", type=Path, default=Path("runs/core"))
    parser.add_argument("--variant", default="gpa-mul")
    parser.add_argument("--limit", type=int, default=100, help="examples per task")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "core")
    arguments = parser.parse_args()
    recipe = load_recipe(
        "demo", [f"data.corpus={arguments.corpus}", f"model.variant={arguments.variant}", *RECIPE]
    )
    run = train(recipe, arguments.run)
    result = core_of(run, arguments.tasks, arguments.limit)
    machine = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "threads": torch.get_num_threads(),
    }
    write_file(arguments.out / "core.json", json.dumps({"versions": machine, **result}, indent=1) + "\n")
    print(f"CORE over {len(result['results'])} tasks: {result['core']:.4f}")


if __name__ == "__main__":
    main()

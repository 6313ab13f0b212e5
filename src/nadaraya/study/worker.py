"""One run of a study in a process of its own: `python -m nadaraya.study.worker RECIPE FOLDER`.

Its figures go to FOLDER.json, by which the study knows that it is done: the folder may be removed then.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

from nadaraya.errors import InputError
from nadaraya.files import write_file
from nadaraya.study.runs import result_file
from nadaraya.training import Recipe, Run, TrainingDiverged, load_recipe, train

_POINTS = 60  # of a validation curve


def main(recipe_file: str, folder: Path) -> int:
    """Train or go on, and write the figures; the exit status."""
    try:
        recipe = load_recipe(recipe_file)
        try:
            found = figures(train(recipe, folder, progress=False))
        except TrainingDiverged as diverged:
            found = {"diverged": str(diverged)}
        write_file(result_file(folder), json.dumps({"recipe": recipe.to_mapping(), **found}) + "\n")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        return 128 + int(stopped.args[0] if stopped.args else signal.SIGINT)
    return 0


def figures(run: Run) -> dict[str, Any]:
    """What a study keeps of a finished run."""
    from nadaraya.evaluation.efficiency import training_flops

    recipe, final = run.recipe, run.final or {}
    curve = [[record["step"], round(record["loss"], 5)] for record in run.series("validation")]
    every = -(-len(curve) // _POINTS) or 1
    found = {
        "steps": run.steps,
        "loss": final["loss"],
        "parameters": final["parameters"],
        "kernel_parameters": final["kernel_parameters"],
        "step_seconds": final["step_seconds"],
        "validation": curve[::-every][::-1],
    }
    if isinstance(recipe, Recipe):
        tokens = run.steps * recipe.training.batch_size * recipe.data.context
        flops = tokens * training_flops(run.load_model(), recipe.data.context)
        found |= {"bits_per_byte": final["bits_per_byte"], "tokens": tokens, "flops": flops}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

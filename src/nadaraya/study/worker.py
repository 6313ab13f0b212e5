"""One run of a study in a process of its own: `python -m nadaraya.study.worker RECIPE FOLDER [PROBE …]`.

Its metrics go to FOLDER.json, by which the study knows that it is done: the folder may be removed then.
Probes come after that, each saved by itself, and those of a finished run that lacks some are made up for.
"""

import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nadaraya.device import device_name, training_device
from nadaraya.errors import InputError
from nadaraya.files import write_file
from nadaraya.names import IMPORTED, import_modules
from nadaraya.study.probes import lacks, measure
from nadaraya.study.results import read_run_file, run_file
from nadaraya.training import Run, TrainingDiverged, load_recipe, train
from nadaraya.training.folder import FolderLock

_POINTS = 60  # of a validation curve
_PATIENCE = 60.0  # seconds for a worker that ends, because its study was killed, to save what it has


def main(recipe_file: str, folder: Path, probes: Sequence[str] = ()) -> int:
    """Train or go on, write the metrics, then those of the probes; the exit status."""
    path = run_file(folder)
    try:
        import_modules(os.environ.get(IMPORTED, ""))
        if path.is_file():
            row: dict[str, Any] = {**read_run_file(path)}
        else:
            row = _trained(recipe_file, folder)
            write_file(path, json.dumps(row) + "\n")
        run = Run(folder) if lacks(row, *probes) else None
        for name in probes:
            if run and lacks(row, name):
                row["probes"] = {**row.get("probes", {}), name: measure(name, run)}
                write_file(path, json.dumps(row) + "\n")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        return 128 + int(stopped.args[0] if stopped.args else signal.SIGINT)
    return 0


def _trained(recipe_file: str, folder: Path) -> dict[str, Any]:
    recipe = load_recipe(recipe_file)
    with FolderLock(folder, _PATIENCE) as lock:
        lock.take()
    try:
        found = _metrics(train(recipe, folder, progress=False))
    except TrainingDiverged as diverged:
        found = {"diverged": str(diverged)}
    return {"recipe": recipe.to_mapping(), "device": device_name(training_device()), **found}


def _metrics(run: Run) -> dict[str, Any]:
    """The metrics of a finished run that a study keeps."""
    from nadaraya.evaluation.efficiency import training_flops

    recipe, final = run.text_recipe(), run.final or {}
    curve = [[record["step"], round(record["loss"], 5)] for record in run.series("validation")]
    every = -(-len(curve) // _POINTS) or 1
    tokens = run.steps * recipe.training.batch_size * recipe.data.context
    return {
        "steps": run.steps,
        **{key: final[key] for key in ("loss", "parameters", "kernel_parameters", "step_seconds")},
        "validation": curve[::-every][::-1],
        "bits_per_byte": final["bits_per_byte"],
        "tokens": tokens,
        "flops": tokens * training_flops(run.load_model(), recipe.data.context),
    }


def end_with_study() -> None:
    """Save and stop, as at a SIGTERM, when the study that started this process ends, even if it is killed.

    Its end of the pipe that is standard input here is then closed.
    """

    def wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_study()
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))

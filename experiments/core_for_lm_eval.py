"""CORE's tasks in the form of EleutherAI's lm-evaluation-harness, so that both decide the same examples."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from nadaraya.evaluation.core_tasks import CoreTask, core_prompts, few_shot_rows, shuffled_rows
from nadaraya.files import write_file


def write_lm_eval_tasks(
    tasks: Iterable[CoreTask], folder: str | Path, *, limit: int | None = None
) -> list[str]:
    """Write CORE's tasks in lm-eval's form, each example with CORE's shots, in CORE's order.

    lm-eval then needs no network. On prompts that fit into the context it decides for every example as
    `Decision.acc` does; its `acc_norm` agrees where a schema has no shots.

    Args:
        tasks: from `read_core`.
        folder: gets core_LABEL.yaml and core_LABEL.jsonl of each, and the cache of the library datasets.
        limit: examples per task, the first of the reference's fixed random order; default all.

    Returns:
        Their names in lm-eval, core_LABEL, for `evaluate_lm_eval` with this folder.

    Raises:
        InputError: a damaged file or row, or a limit too small for the shots.
    """
    folder, names = Path(folder).resolve(), []
    for task in tasks:
        name = f"core_{task.label}"
        rows = shuffled_rows(task, limit)
        lines = [
            json.dumps(_rendered(task, row, few_shot_rows(rows, index, task.shots)))
            for index, row in enumerate(rows)
        ]
        data = folder / f"{name}.jsonl"
        write_file(data, "\n".join(lines) + "\n")
        write_file(folder / f"{name}.yaml", yaml.safe_dump(_settings(task, name, data)))
        names.append(name)
    return names


def _rendered(task: CoreTask, row: dict[str, Any], shots: list[dict[str, Any]]) -> dict[str, Any]:
    """Context before the ending, without blanks at its end, and the options."""
    prompts = core_prompts(task, row, shots)
    contexts = [prompt.context.rstrip() for prompt in prompts]
    if task.kind == "multiple_choice":
        return {"context": contexts[0], "choices": row["choices"], "gold": row["gold"]}
    if task.kind == "schema":
        return {"contexts": contexts, "ending": row["continuation"], "gold": row["gold"]}
    return {"context": contexts[0], "ending": row["continuation"]}


def _settings(task: CoreTask, name: str, data: Path) -> dict[str, Any]:
    """The .yaml file of a task; a schema's text is the index of the right context, as lm-eval has it."""
    asked = {
        "multiple_choice": {"doc_to_text": "context", "doc_to_choice": "choices", "doc_to_target": "gold"},
        "schema": {"doc_to_text": "gold", "doc_to_choice": "contexts", "doc_to_target": "ending"},
        "language_modeling": {"doc_to_text": "context", "doc_to_target": "ending"},
    }[task.kind]
    chosen = task.kind != "language_modeling"
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(data.parent / "cache")},
        "test_split": "test",
        "num_fewshot": 0,
        "output_type": "multiple_choice" if chosen else "loglikelihood",
        "target_delimiter": task.delimiter[len(task.delimiter.rstrip()) :],
        "metric_list": [{"metric": metric} for metric in (["acc", "acc_norm"] if chosen else ["acc"])],
        **asked,
    }

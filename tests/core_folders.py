"""Small CORE folders in both layouts, and the options of a row by its kind."""

import json
from pathlib import Path
from typing import Any

SHARED = Path(__file__).parents[2] / "shared" / "data" / "core_tasks"

CHOICE = [
    {
        "query": f"Of {i} apples and {i % 3} pears",
        "choices": ["none is red.", f"{i} are green"],
        "gold": i % 2,
    }
    for i in range(7)
]
SCHEMA = [
    {
        "context_options": [f"{i} cats and dogs: the {animal}" for animal in ("cat", "dog")],
        "continuation": "ran.",
        "gold": i % 2,
    }
    for i in range(5)
]
ENDING = [{"context": f" {i} + 1 = ", "continuation": f"{i + 1}"} for i in range(6)]
TASKS: dict[str, tuple[str, int, float, list[dict[str, Any]]]] = {
    "piqa": ("multiple_choice", 2, 50, CHOICE),
    "winograd": ("schema", 0, 50, SCHEMA),
    "bigbench_operators": ("language_modeling", 3, 0, ENDING),
}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def flat_folder(folder: Path) -> Path:
    """The tasks as .jsonl files with core_meta.json."""
    entries = []
    for label, (kind, shots, baseline, rows) in TASKS.items():
        write_rows(folder / f"{label}.jsonl", rows)
        entries.append(
            {"label": label, "icl_task_type": kind, "num_fewshot": shots, "random_baseline_pct": baseline,
             "continuation_delimiter": " ", "file": f"{label}.jsonl"}
        )  # fmt: skip
    (folder / "core_meta.json").write_text(json.dumps({"tasks": entries}))
    return folder


def bundle(folder: Path) -> Path:
    """The tasks in DCLM's layout."""
    listed, baselines = ["icl_tasks:"], ["Eval Task,Task Category,Random baseline"]
    for label, (kind, shots, baseline, rows) in TASKS.items():
        write_rows(folder / "eval_data" / "some" / f"{label}.jsonl", rows)
        listed += [
            f"- label: {label}",
            f"  dataset_uri: some/{label}.jsonl",
            f"  num_fewshot: [{shots}]",
            f"  icl_task_type: {kind}",
        ]
        baselines.append(f"{label},any,{baseline}")
    (folder / "core.yaml").write_text("\n".join(listed) + "\n")
    (folder / "eval_meta_data.csv").write_text("\n".join(baselines) + "\n")
    return folder

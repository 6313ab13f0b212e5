"""Files and functions that a call of the library walks through, as one who reads the code would.

    python benchmarks/walks.py --json walks.json
    git worktree add before 756f1f7 && PYTHONPATH=before/src python benchmarks/walks.py

Four calls: the operator (a bank by lag, forward and backward), a fit of a regression by its own bandwidth,
three updates of the demo recipe, and a report on that run. Counted are files of the library entered, distinct
functions called, and how many of these are on the stack at most. Compiled code, and threads beside the main
one, are not seen.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from tables import markdown

import nadaraya
from nadaraya import kernel_attention
from nadaraya.kernels import KernelBank

HOME = str(Path(nadaraya.__file__).parent)


def walk(call: Callable[[], Any]) -> dict[str, int]:
    """Files, functions and depth of the library's own frames while a function runs."""
    seen: set[CodeType] = set()
    depth = deepest = 0

    def follow(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, deepest
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(HOME):
            return
        depth += 1 if event == "call" else -1
        deepest = max(deepest, depth)
        if code.co_name != "<module>":
            seen.add(code)

    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(None)
    files = {code.co_filename for code in seen}
    return {"files": len(files), "functions": len(seen), "depth": deepest}


def operator() -> None:
    x = torch.randn(1, 4, 256, 16, requires_grad=True)
    kernel_attention(x, x, x, position=KernelBank(4, num_terms=8), causal=True).sum().backward()


def regression() -> None:
    from nadaraya.regression import NadarayaWatson

    x = np.linspace(0.0, 1.0, 200)[:, None]
    NadarayaWatson().fit(x, np.sin(9.0 * x[:, 0]))


def training(folder: Path) -> None:
    from nadaraya.training import load_recipe, train

    changes = ["training.steps=3", "training.warmup_steps=0", "training.validation_batches=1"]
    train(load_recipe("demo", changes), folder, progress=False)


def report(folder: Path) -> None:
    from nadaraya.report import read_run, write_report
    from nadaraya.training import Run

    write_report([read_run(Run(folder))], folder / "report.html")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write them here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        walks = {
            "kernel_attention": walk(operator),
            "NadarayaWatson.fit": walk(regression),
            "train, three updates": walk(lambda: training(folder)),
            "report": walk(lambda: report(folder)),
        }
    rows = [[name, *map(str, row.values())] for name, row in walks.items()]
    print(markdown(["call", "files", "functions", "depth"], rows))
    if given.json:
        given.json.write_text(json.dumps(walks, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

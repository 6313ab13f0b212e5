"""Runs that exist in memory only: real kernels, made-up curves."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nadaraya.interpret.banks import BankShape
from nadaraya.interpret.lags import lag_histogram
from nadaraya.interpret.reach import LagWeights
from nadaraya.kernels import ALiBi, Exp, KernelBank
from nadaraya.report.runs import RunData

LINES = ("x" * 69 + "\n\n") * 60
FIGURES = {"bits_per_byte": 1.8, "parameters": 10_000, "kernel_parameters": 512, "step_seconds": 0.1}


def metrics(loss: float, finished: bool) -> list[dict[str, Any]]:
    """Curves that fall to a loss, and the final record of a finished run."""
    steps = range(50, 601 if finished else 301, 50)
    records: list[dict[str, Any]] = [
        {"kind": "train", "step": s, "loss": loss + 60 / s, "seconds": s / 10} for s in steps
    ]
    records += [{"kind": "validation", "step": s, "loss": loss + 50 / s} for s in steps]
    return [*records, {"kind": "final", "step": 600, "loss": loss, **FIGURES}] if finished else records


def shapes(variant: str) -> list[BankShape]:
    """The lag kernels of a model of two layers and four heads, or the biases of ALiBi."""
    if variant == "rope":
        return []
    if variant == "alibi":
        return [BankShape(0, False, None, ALiBi(4).lag_logits(256, causal=True).numpy())]
    added = variant != "gpa-mul"
    found = []
    for layer in range(2):
        tables = [
            (Exp(bank) if added else bank).lag_logits(256, causal=True).detach().double().numpy()
            for bank in (KernelBank(4, 8), bumped(KernelBank(4, 8)))
        ]
        found.append(BankShape(layer, added, *tables))
    return found


def reads() -> list[LagWeights]:
    """The weights by lag of two layers of four heads: half of them near, all within 255 tokens."""
    within = 1 - 0.5 ** (np.arange(256) / np.array([[1], [2], [4], [8]]))
    within[:, -1] = 1
    return [LagWeights(layer, (0, 1, 2, 3), within) for layer in range(2)]


@torch.no_grad()
def bumped(bank: KernelBank, period: float = 70.0) -> KernelBank:
    """A bank whose longest term has become sharply periodic and strong."""
    bank.log_tau[:, -1] = torch.tensor(period / torch.pi).log()
    bank.log_alpha[:, -1] = 1.0
    bank.log_sigma[:, -1] = 1.5
    return bank


@pytest.fixture(scope="session")
def make_run() -> Callable[..., RunData]:
    def make(variant: str = "gpa-mul", loss: float = 1.2, finished: bool = True, **changed: Any) -> RunData:
        name = f"demo-{variant}"
        given: dict[str, Any] = {
            "name": name,
            "folder": name,
            "setup": "2 layers",
            "recipe": f"name: {name}\n",
            "sample": LINES[:4000],
            "text": ("embedded",),
            "corpus": ("embedded", LINES),
            "newlines": lag_histogram(LINES),
            "banks": shapes(variant) if finished else [],
            "reads": reads() if finished else [],
        }
        return RunData(variant=variant, metrics=metrics(loss, finished), **(given | changed))

    return make

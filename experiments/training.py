"""The loop that trains the small models of these scripts, and the file that they go on with."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from nadaraya.attention.layer import KernelSelfAttention

Rows = Callable[[Generator], Tensor]  # -> (B, N) token ids of an update
Loss = Callable[[Tensor, int], Tensor]  # rows and the number of the update -> its loss


def begun(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings and runs of a file, none where there is no file; ends where it has other settings."""
    if not path.is_file():
        return {"settings": dict(settings), "runs": []}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if found["settings"] != settings:
        print(f"error: {path} was made with {found['settings']}, not {settings}", file=sys.stderr)
        sys.exit(2)
    return found


def windows(tokens: Tensor, length: int, batch: int) -> Rows:
    """Windows at random places of a text."""

    def draw(generator: Generator) -> Tensor:
        starts = torch.randint(len(tokens) - length, (batch, 1), generator=generator)
        return tokens[starts + torch.arange(length)]

    return draw


def train(
    model: Any,
    rows_of: Rows,
    loss_of: Loss,
    *,
    updates: int,
    rate: float,
    warmup: int = 100,
    seed: int = 1,
    watch: Callable[[int, float], None] | None = None,
) -> None:
    """AdamW; the rate falls to 0 in the second half, kernels have ten times as much and no weight decay.

    `watch` is called every 500 updates with their number and the loss.
    """
    kernels = [
        p for m in model.modules() if isinstance(m, KernelSelfAttention) for _, p in m.kernel_parameters()
    ]
    known = set(map(id, kernels))
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    groups = [{"params": others, "lr": rate, "weight_decay": 0.1}, {"params": kernels, "lr": 10 * rate}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 1.0, (updates - step) / (0.5 * updates))
    )
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for step in range(updates):
        optimizer.zero_grad()
        loss = loss_of(rows_of(generator), step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if watch and step % 500 == 499:
            watch(step + 1, loss.item())

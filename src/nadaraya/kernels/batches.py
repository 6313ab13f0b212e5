"""Batches of kernels and of points: shapes that go together, and sums of logarithms."""

from collections.abc import Iterable

import torch
from torch import Tensor

from nadaraya.errors import must_be


def log_of_sum(logs: Tensor, dim: int) -> Tensor:
    """log Σ exp along an axis, −inf where all are."""
    # There the derivative of log-sum-exp is 0/0; it is kept out of the graph.
    empty = torch.isneginf(logs).all(dim=dim, keepdim=True)
    return torch.logsumexp(logs.masked_fill(empty, 0.0), dim=dim).masked_fill(empty.squeeze(dim), -torch.inf)


def common_batch_shape(shapes: Iterable[tuple[str, torch.Size]]) -> torch.Size:
    per_head = [(name, shape) for name, shape in shapes if shape]
    for name, shape in per_head:
        if shape != per_head[0][1]:
            given = [(per_head[0][0], per_head[0][1][0]), (name, shape[0])]
            raise must_be("numbers of heads", "equal", given)
    return per_head[0][1] if per_head else torch.Size()


def as_points(name: str, x: Tensor) -> Tensor:
    x = torch.as_tensor(x)
    if x.ndim not in (1, 2):
        raise must_be(name, "of shape (n, d), or (n,) for d = 1", tuple(x.shape))
    return x[:, None] if x.ndim == 1 else x

"""Loops of `passes` for numba; (B, H, R, K) with rows in reverse, pair r, k on diagonal r + k.

Only of contiguous memory are there vector instructions: lines of diagonals, which are views, are copied.
"""

from typing import Any

import numpy as np

from nadaraya.compiled.exponential import exp32
from nadaraya.compiled.jit import compiled


@compiled(nogil=True, fastmath={"contract", "nsz", "reassoc"})
def weights_from(scores: Any, diagonals: Any, least: float) -> None:
    """exp(scores + bias), in place, 0 below `least`; the bias from its diagonals (H or 1, R + K − 1)."""
    smallest = np.float32(least)
    items, heads, rows, keys = scores.shape
    for item in range(items):
        for head in range(heads):
            biases = diagonals[head if len(diagonals) > 1 else 0].copy()
            for r in range(rows):
                row, bias = scores[item, head, r], biases[r : r + keys]
                for k in range(keys):
                    x = row[k] + bias[k]
                    row[k] = exp32(x) * np.float32(x > smallest)


@compiled(nogil=True, fastmath={"contract", "nsz", "reassoc"})
def gradients_from(grads: Any, weights: Any, along: Any) -> None:
    """The gradients are multiplied by the weights, and added to (H, R + K − 1) along their diagonals."""
    items, heads, rows, keys = grads.shape
    for item in range(items):
        for head in range(heads):
            sums = along[head].copy()
            for r in range(rows):
                row, weight, total = grads[item, head, r], weights[item, head, r], sums[r : r + keys]
                for k in range(keys):
                    row[k] *= weight[k]
                    total[k] += row[k]
            along[head] = sums

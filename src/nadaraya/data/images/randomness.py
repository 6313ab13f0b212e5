"""Random numbers as functions of a seed and a place; the global states that timm's transforms draw from."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seeds(count: int, *place: int) -> list[int]:
    """`count` seeds below 2^63 that depend on a place alone: the seed of the run, what for, where."""
    states = np.random.SeedSequence(place).generate_state(count, np.uint64) >> np.uint64(1)
    return states.tolist()


def seed_all(seed: int) -> None:
    """Seed the generators of `random`, numpy and torch (CPU): timm's transforms use all three."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (timm draws from numpy's global state)
    # torch.manual_seed would also seed every accelerator, at a hundred times the cost.
    torch.default_generator.manual_seed(seed)


@contextmanager
def global_states_kept() -> Iterator[None]:
    """Put the global random states back afterwards."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002
        torch.default_generator.set_state(tensors)

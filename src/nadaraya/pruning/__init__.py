"""Runs with fewer heads: how many can go, what the loss becomes, the smaller run, tuned and written."""

from nadaraya.pruning.curves import PruningPlan, most_heads, pruning_curve
from nadaraya.pruning.smaller import prune_run

__all__ = [
    "PruningPlan",
    "most_heads",
    "prune_run",
    "pruning_curve",
]

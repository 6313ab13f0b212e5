"""Search over kernel expressions: which kernel of the lag a recipe trains best with.

As Duvenaud et al. (2013) and Lloyd et al. (2014) search the structure of a Gaussian process, scored by the
validation loss of a trained model instead of a marginal likelihood.
"""

from nadaraya.study.search.progress import Candidate, Progress, SearchPlan, neighbours, search_progress
from nadaraya.study.search.runs import (
    SearchSession,
    plan_search,
    run_search,
    search_recipe,
    summarise_search,
)

__all__ = [
    "Candidate",
    "Progress",
    "SearchPlan",
    "SearchSession",
    "neighbours",
    "plan_search",
    "run_search",
    "search_progress",
    "search_recipe",
    "summarise_search",
]

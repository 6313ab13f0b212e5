"""Whether scores of heads tell what they are worth: rank correlations of several models, pooled."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from nadaraya.errors import must_be
from nadaraya.interpret.heads import BANK_SCORES, HeadReport

# Variance of Fisher's z of a rank correlation, times n − 3 (Fieller, Hartley and Pearson 1957).
_SPEARMAN = 1.06


@dataclass(frozen=True)
class PooledCorrelation:
    """A rank correlation over the heads of several models, ranked within each.

    Args:
        value: the pooled correlation.
        low: lower end of its interval.
        high: upper end.
        heads: of all models.
        runs: models that have the score.
    """

    value: float
    low: float
    high: float
    heads: int
    runs: int


def pooled_correlations(
    reports: Sequence[HeadReport], names: Sequence[str] = BANK_SCORES, level: float = 0.95
) -> dict[str, PooledCorrelation]:
    """Rank correlations of scores with `loss_increase`, pooled over models.

    With r_i the rank correlation of model i over its n_i heads and z = artanh r,

        z = Σ_i (n_i − 3) z_i / Σ_i (n_i − 3),    with variance 1.06 / Σ_i (n_i − 3)

    (Fisher 1921; the variance for ranks is that of Fieller, Hartley and Pearson 1957). Models are not mixed:
    that heads of one are worth more than those of another is no correlation. The interval takes heads to be
    independent, and the models to have one correlation. A perfect r_i has no finite z: at most it counts as
    midway to that of two neighbours that changed places.

    Args:
        reports: of `head_report`, one for each model.
        names: fields of `HeadScore`; default those of banks.
        level: of the intervals; default 0.95.

    Returns:
        By name; a score that no model has for four heads or more, or has alike for all, is left out.

    Raises:
        InputError: a level that is not between 0 and 1.

    >>> from nadaraya.interpret.heads import HeadReport, HeadScore
    >>> from nadaraya.interpret.rank_correlation import pooled_correlations
    >>> worth = [0.1, 0.3, 0.2, 0.5, 0.4]
    >>> heads = [HeadScore(0, i, x, 0, 0, 0, bank_range=i) for i, x in enumerate(worth)]
    >>> round(pooled_correlations([HeadReport(1.0, 9, tuple(heads))] * 2)["bank_range"].value, 3)
    0.8
    """
    if not 0.0 < level < 1.0:
        raise must_be("level", "between 0 and 1", level)
    reach = NormalDist().inv_cdf((1 + level) / 2)
    pooled = {}
    for name in names:
        each = [found for report in reports if (found := report.correlation(name)) and found[1] > 3]
        if each:
            r, counts = np.array(each).T
            most = 1 - 6 / (counts * (counts**2 - 1))
            z = np.average(np.arctanh(r.clip(-most, most)), weights=counts - 3)
            half = reach * np.sqrt(_SPEARMAN / (counts - 3).sum())
            low, value, high = np.tanh([z - half, z, z + half]).tolist()
            pooled[name] = PooledCorrelation(value, low, high, int(counts.sum()), len(each))
    return pooled

"""Scores of heads: of their banks, of their attention patterns, and what the loss gains without them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import must_be
from nadaraya.interpret.ablation import ablated, head_layers
from nadaraya.interpret.banks import BankShape, bank_shapes
from nadaraya.interpret.labels import head_label
from nadaraya.interpret.windows import Windows

BANK_SCORES = ("bank_max", "bank_range", "bank_similarity")
# Variance of Fisher's z of a rank correlation, times n − 3 (Fieller, Hartley and Pearson 1957).
_SPEARMAN = 1.06


@dataclass(frozen=True)
class HeadScore:
    """One head of a language model.

    Args:
        layer: index of the layer (0-based).
        head: number of the head in its layer (0-based), as before any was removed.
        loss_increase: what the validation loss gains, in nats/token, when the head's output is zero.
        previous_token: mean weight of the token before, on random tokens.
        duplicate_token: mean weight of the same token one repeat earlier, on random tokens said twice.
        induction: mean weight of the token after that one (Olsson et al. 2022).
        bank_max: max |G| over the lags of the context; None for a head without a kernel of the lag.
        bank_range: highest minus lowest value that it adds to the logits at any of these lags, in nats.
        bank_similarity: highest correlation of what it adds, lag by lag, with another head of its layer; None
            also where it is alone or adds the same at all lags.
    """

    layer: int
    head: int
    loss_increase: float
    previous_token: float
    duplicate_token: float
    induction: float
    bank_max: float | None = None
    bank_range: float | None = None
    bank_similarity: float | None = None

    @property
    def label(self) -> str:
        """LAYER.HEAD."""
        return head_label(self.layer, self.head)


@dataclass(frozen=True)
class HeadReport:
    """All heads of a model.

    Args:
        loss: of the whole model on the windows, in nats/token.
        tokens: predicted in the windows.
        heads: by layer and number.
    """

    loss: float
    tokens: int
    heads: tuple[HeadScore, ...]

    def ranked(self) -> list[HeadScore]:
        """The heads, the one whose removal costs least first."""
        return sorted(self.heads, key=lambda score: score.loss_increase)

    def correlations(self) -> dict[str, float]:
        """Spearman's rank correlation of each score of the banks with `loss_increase`, over all heads.

        Only scores that at least three heads have, and that differ.
        """
        return {name: found[0] for name in BANK_SCORES if (found := self.correlation(name)) is not None}

    def correlation(self, name: str) -> tuple[float, int] | None:
        """Spearman's rank correlation of a score with `loss_increase`, and over how many heads.

        Args:
            name: of the score.

        Returns:
            None where fewer than three heads have the score, or it is the same for all.
        """
        values = [(getattr(score, name), score.loss_increase) for score in self.heads]
        pairs = [(value, gain) for value, gain in values if value is not None]
        found = rank_correlation(pairs)
        return None if found is None else (found, len(pairs))


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's, of pairs; None with fewer than 3, or where either value is the same in all."""
    from scipy.stats import spearmanr

    if len(pairs) < 3 or any(len(set(values)) == 1 for values in zip(*pairs, strict=True)):
        return None
    found = float(spearmanr(pairs).statistic)
    return found if math.isfinite(found) else None


@dataclass(frozen=True)
class PooledCorrelation:
    """A rank correlation over the heads of several models, ranked within each."""

    value: float  # pooled, with the ends of its interval
    low: float
    high: float
    heads: int  # of all models
    runs: int  # models that have the score


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

    >>> from nadaraya.interpret.heads import HeadReport, HeadScore, pooled_correlations
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


def head_report(model: Any, windows: Windows, *, sequences: int = 4, seed: int = 0) -> HeadReport:
    """Score every head of a language model.

    Args:
        model: KernelGPT, or one of transformers whose heads `prune_heads` can remove, in eval mode; left as
            it is.
        windows: on which the loss is measured.
        sequences: repeated random texts for the scores of the patterns; default 4.
        seed: of these; default 0.

    Returns:
        The report. Every loss is on the same windows; that of a head's removal is measured with the head's
        output set to zero and everything else as it is.

    Raises:
        InputError: a model with attention of another kind.

    >>> import torch
    >>> from nadaraya.interpret.heads import head_report
    >>> from nadaraya.interpret.windows import Windows
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", variant="gpa-mul")).eval()
    >>> text = torch.arange(33)[None]
    >>> len(head_report(model, Windows(text[:, :-1], text[:, 1:])).heads)
    16
    """
    whole = windows.loss(model)
    patterns = pattern_scores(model, sequences, seed)
    banks = scored_banks(model, windows.inputs.shape[1])
    scores = []
    for layer, (heads, _) in head_layers(model).items():
        for row, head in enumerate(heads):
            with ablated(model, {layer: [head]}):
                without = windows.loss(model)
            bank = banks[layer][row] if layer in banks else {}
            scores.append(HeadScore(layer, head, without - whole, **patterns[layer][row], **bank))
    return HeadReport(whole, windows.tokens, tuple(scores))


def scored_banks(model: Any, num_lags: int) -> dict[int, list[dict[str, Any]]]:
    """`bank_scores` of every layer that has a kernel of the lag; none of models of transformers."""
    shapes = bank_shapes(model, num_lags) if hasattr(model, "lag_kernels") else []
    return {shape.layer: bank_scores(shape) for shape in shapes}


def bank_scores(shape: BankShape) -> list[dict[str, Any]]:
    """The scores of the bank of each head of a layer, as keywords of `HeadScore`."""
    logits = np.where(np.isfinite(shape.trained), shape.trained, np.nan)
    # G itself is added, or its log.
    strength = np.abs(logits if shape.added else np.exp(logits))
    varies = np.nanmax(logits, axis=1) - np.nanmin(logits, axis=1)
    alike = np.full((len(logits), len(logits)), np.nan)
    for i, j in np.ndindex(alike.shape):
        pair = logits[[i, j]][:, np.isfinite(logits[[i, j]]).all(axis=0)]
        if i != j and pair.size and np.ptp(pair, axis=1).all():
            alike[i, j] = np.corrcoef(pair)[0, 1]
    return [
        {
            "bank_max": float(np.nanmax(strength[head])),
            "bank_range": float(varies[head]),
            "bank_similarity": float(np.nanmax(row)) if np.isfinite(row).any() else None,
        }
        for head, row in enumerate(alike)
    ]


@torch.no_grad()
def pattern_scores(model: Any, sequences: int = 4, seed: int = 0) -> list[list[dict[str, float]]]:
    """Previous-token, duplicate-token and induction scores of every head, as keywords of `HeadScore`.

    Of n different random tokens that are said twice, token n + i is the same as token i and as no other. The
    scores are mean weights, over the tokens of the second time: that of the token before, of token i, and of
    token i + 1, which came after the same token the first time (Olsson et al. 2022).
    """
    vocabulary = int(model.config.vocab_size)
    n = max(2, min(int(model.config.max_position_embeddings) // 2, vocabulary, 128))
    generator = torch.Generator().manual_seed(seed)
    once = torch.stack([torch.randperm(vocabulary, generator=generator)[:n] for _ in range(sequences)])
    lags = {"previous_token": 1, "duplicate_token": n, "induction": n - 1}
    # Attention that returns its weights; a model of transformers may have another.
    before = getattr(model.config, "_attn_implementation", None)
    switched = not hasattr(model, "lag_kernels") and before not in (None, "eager", "nadaraya")
    sums: list[Tensor] = []
    try:
        if switched:
            model.set_attn_implementation("eager")
        for text in once.repeat(1, 2).to(model.device):  # one at a time: weights take L H (2 n)² numbers
            weights = model(text[None], output_attentions=True, use_cache=False).attentions
            # From token n on, the diagonals at the three lags.
            seen = [
                [w[0].diagonal(-lag, 1, 2)[:, max(0, n - lag) :] for lag in lags.values()] for w in weights
            ]
            found = [torch.stack([each.double().mean(1) for each in layer], 1) for layer in seen]
            sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
    finally:
        if switched:
            model.set_attn_implementation(before)
    return [
        [dict(zip(lags, (row / sequences).tolist(), strict=True)) for row in layer.cpu()] for layer in sums
    ]

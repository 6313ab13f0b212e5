"""What each head is and what it is worth: its bank, its attention pattern, the loss without it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from nadaraya.errors import must_be
from nadaraya.interpret.banks import BankShape, bank_shapes

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTForCausalLM
    from nadaraya.training import Run

BANK_SCORES = ("bank_max", "bank_range", "bank_similarity")


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
        from scipy.stats import spearmanr

        found = {}
        for name in BANK_SCORES:
            having = [score for score in self.heads if getattr(score, name) is not None]
            values = [getattr(score, name) for score in having]
            worth = [score.loss_increase for score in having]
            if len(having) >= 3 and len(set(values)) > 1 and len(set(worth)) > 1:
                found[name] = float(spearmanr(values, worth).statistic)
        return found


@contextmanager
def silenced(model: nn.Module, heads: Mapping[int, Sequence[int]]) -> Iterator[None]:
    """While the context lasts, the output of some heads is zero: W_O sees nothing of them.

    Args:
        model: a KernelGPT model.
        heads: by layer, as they were numbered before any was removed.

    Raises:
        InputError: a layer or a head that the model has not.

    >>> import torch
    >>> from nadaraya.interpret.heads import silenced
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo")).eval()
    >>> with silenced(model, {0: [1]}):
    ...     logits = model(torch.arange(8)[None]).logits
    """
    layers = _layers(model)
    hooks = []
    try:
        for layer, removed in heads.items():
            if not 0 <= layer < len(layers) or not set(removed) <= set(layers[layer].heads):
                raise must_be("heads", "heads that the model has", {layer: list(removed)})
            rows = [layers[layer].heads.index(head) for head in removed]
            hooks.append(layers[layer].o_proj.register_forward_pre_hook(_silence(rows, layers[layer])))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def head_names(model: nn.Module) -> list[tuple[int, int]]:
    """Layer and number of every head of a KernelGPT model, in order."""
    return [(layer, head) for layer, part in enumerate(_layers(model)) for head in part.heads]


def head_report(
    model: "KernelGPTForCausalLM", inputs: Tensor, targets: Tensor, *, sequences: int = 4, seed: int = 0
) -> HeadReport:
    """Score every head of a language model.

    Args:
        model: in eval mode; left as it is.
        inputs: (B, N) token numbers of the windows on which the loss is measured.
        targets: (B, N) the tokens that follow them.
        sequences: repeated random texts for the scores of the patterns; default 4.
        seed: of these; default 0.

    Returns:
        The report. Every loss is on the same windows; that of a head's removal is measured with the head's
        output set to zero and everything else as it is.

    >>> import torch
    >>> from nadaraya.interpret.heads import head_report
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", variant="gpa-mul")).eval()
    >>> text = torch.arange(33)[None]
    >>> len(head_report(model, text[:, :-1], text[:, 1:]).heads)
    16
    """
    from nadaraya.evaluation.language import total_nats

    whole = total_nats(model, inputs, targets) / targets.numel()
    patterns = pattern_scores(model, sequences, seed)
    banks = {shape.layer: bank_scores(shape) for shape in bank_shapes(model, inputs.shape[1])}
    scores = []
    for layer, part in enumerate(_layers(model)):
        for row, head in enumerate(part.heads):
            with silenced(model, {layer: [head]}):
                without = total_nats(model, inputs, targets) / targets.numel()
            bank = banks[layer][row] if layer in banks else {}
            scores.append(HeadScore(layer, head, without - whole, **patterns[layer][row], **bank))
    return HeadReport(whole, targets.numel(), tuple(scores))


def bank_scores(shape: BankShape) -> list[dict[str, Any]]:
    """What the bank of a layer says of each head, as keywords of `HeadScore`.

    Args:
        shape: the kernel of the layer by lag, one row per head.
    """
    logits = np.where(np.isfinite(shape.trained), shape.trained, np.nan)
    # G itself is added, or its log.
    strength = np.abs(logits if shape.added else np.exp(logits))
    varies = np.nanmax(logits, axis=1) - np.nanmin(logits, axis=1)
    alike = np.full((len(logits), len(logits)), np.nan)
    for i, j in np.ndindex(alike.shape):
        common = np.isfinite(logits[i]) & np.isfinite(logits[j])
        if i != j and common.any() and np.ptp(logits[i, common]) > 0 and np.ptp(logits[j, common]) > 0:
            alike[i, j] = np.corrcoef(logits[i, common], logits[j, common])[0, 1]
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

    Of n random tokens that are said twice, token n + i is the same as token i. The scores are mean weights,
    over the tokens of the second time: that of the token before, of token i, and of token i + 1, which came
    after the same token the first time (Olsson et al. 2022).

    Args:
        model: a KernelGPT model, in eval mode.
        sequences: how many texts. Default 4.
        seed: of the random tokens. Default 0.

    Returns:
        One list per layer with one mapping per head.

    >>> from nadaraya.interpret.heads import pattern_scores
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo")).eval()
    >>> sorted(pattern_scores(model)[0][0])
    ['duplicate_token', 'induction', 'previous_token']
    """
    n = max(2, min(int(model.config.max_position_embeddings) // 2, 128))
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(int(model.config.vocab_size), (sequences, n), generator=generator)
    lags = {"previous_token": 1, "duplicate_token": n, "induction": n - 1}
    sums: list[Tensor] = []
    for text in once.repeat(1, 2).to(model.device):  # one at a time: weights take L H (2 n)² numbers
        weights = model(text[None], output_attentions=True, use_cache=False).attentions
        # From token n on, the diagonals at the three lags.
        found = [
            torch.stack(
                [w[0].diagonal(-lag, 1, 2)[:, max(0, n - lag) :].double().mean(1) for lag in lags.values()], 1
            )
            for w in weights
        ]
        sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
    return [
        [dict(zip(lags, (row / sequences).tolist(), strict=True)) for row in layer.cpu()] for layer in sums
    ]


def validation_windows(run: "Run", count: int) -> tuple[Tensor, Tensor]:
    """Windows of the validation text of a run, evenly spaced, and the tokens that follow: (count, context).

    Args:
        run: a run on text.
        count: how many; fewer where the text has fewer places to start.

    Raises:
        InputError: no windows, a run on images, or a text that is not there any more.
    """
    from nadaraya.data import encode_text
    from nadaraya.training.batches import check_length, validation_sample

    if count < 1:
        raise must_be("windows", "1 or more", count)
    data = run.text_recipe().data
    text = run.corpus().split(data.validation_fraction)[1]
    tokens = encode_text(run.tokenizer(), text)
    check_length(tokens, data.context, "validation")
    return validation_sample(tokens, data.context, count)


def _layers(model: nn.Module) -> list[Any]:
    """The projections of every attention layer of a KernelGPT model."""
    from nadaraya.attention.layer import KernelSelfAttention

    return [module.projections for module in model.modules() if isinstance(module, KernelSelfAttention)]


def _silence(rows: list[int], part: Any) -> Any:
    """A hook that zeroes the slices of some heads ahead of W_O."""

    def hook(module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        heads = arguments[0].unflatten(-1, (len(part.heads), -1))
        silent = torch.zeros(len(part.heads), 1, dtype=torch.bool, device=heads.device)
        silent[rows] = True
        return (heads.masked_fill(silent, 0.0).flatten(-2),)

    return hook

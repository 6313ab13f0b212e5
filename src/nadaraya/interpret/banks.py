"""The shapes of lag kernels: what each head adds to its logits, at the start and after training."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nadaraya.errors import must_be
from nadaraya.interpret.labels import LabelledHeads, head_numbers
from nadaraya.interpret.peaks import Peak, prominent_peaks
from nadaraya.kernels import Exp, Kernel


@dataclass(frozen=True)
class Bump(LabelledHeads):
    """A bump of the trained shape that one or several heads of a layer share."""

    layer: int  # from 0
    lag: int  # of its strongest peak, in tokens
    heads: tuple[int, ...]  # their numbers, from 0, as before any was removed; ascending
    prominence: float  # of the strongest peak, in logits (nats): the height above its surroundings
    width: float  # of the strongest peak at half its prominence, in tokens
    at_start: bool  # whether the untrained shape had a peak of at least half that prominence there


@dataclass(frozen=True)
class BankShape(LabelledHeads):
    """What the lag kernel of one layer adds to the logits: the log of the kernel.

    Args:
        layer: index of the layer (0-based).
        added: whether the kernel is an `Exp`, so that it is G itself which is added (Gaussian Process
            Attention, eq. 6) and not log G (Bunks et al. 2025, eq. 6).
        initial: (H, L) logits before training for lags 0 to L − 1; None when the start is not known.
        trained: (H, L) logits after training; −inf where a kernel is exactly zero.
        heads: the numbers of the heads, as before any was removed; default all from 0.

    >>> import numpy as np
    >>> from nadaraya.interpret import BankShape
    >>> shape = BankShape(0, added=True, initial=None, trained=np.array([[1.0, 0.5, 2.0, 0.0]]))
    >>> [bump.lag for bump in shape.shared_bumps()]
    [2]
    """

    layer: int
    added: bool
    initial: np.ndarray | None
    trained: np.ndarray
    heads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", self.heads or tuple(range(len(self.trained))))

    def peaks(self, k: int | None = 3, minimum: float = 0.25) -> list[list[Peak]]:
        """The k most prominent bumps of every head after training (None: all), a peak's index being its lag.

        The smallest prominence is in logits: at 0.25 a bump weighs 1.28 times its valley. Lag 0, where a
        decaying kernel starts, is not a bump.
        """
        return [_bumps(head, k, minimum) for head in self.trained]

    def rises(self) -> np.ndarray:
        """(H, L) logits: how far each head stands above its lowest value at shorter lags, at least 0.

        A decaying kernel has 0 throughout: what remains are its bumps, without the decay that hides them.
        NaN where a kernel is exactly zero.
        """
        finite = np.where(np.isfinite(self.trained), self.trained, np.nan)
        return finite - np.fmin.accumulate(finite, axis=1)

    def shared_bumps(self, reach: int = 4, minimum: float = 0.25) -> list[Bump]:
        """The bumps of the layer, the one with the greatest summed prominence first.

        Peaks of different heads within `reach` lags of each other are one bump; `minimum` is in logits.
        """
        found = [(peak, row) for row, peaks in enumerate(self.peaks(None, minimum)) for peak in peaks]
        found.sort(key=lambda pair: -pair[0].prominence)
        ranked: list[tuple[float, Bump]] = []
        while found:
            centre = found[0][0]
            members = [pair for pair in found if abs(pair[0].index - centre.index) <= reach]
            found = [pair for pair in found if abs(pair[0].index - centre.index) > reach]
            rows = sorted({row for _, row in members})
            heads, there = tuple([self.heads[row] for row in rows]), self._was_there(centre, rows, reach)
            bump = Bump(self.layer, centre.index, heads, centre.prominence, centre.width, there)
            ranked.append((sum(peak.prominence for peak, _ in members), bump))
        return [bump for _, bump in sorted(ranked, key=lambda pair: -pair[0])]

    def _was_there(self, peak: Peak, rows: list[int], reach: int) -> bool:
        if self.initial is None:
            return False
        before = (old for row in rows for old in _bumps(self.initial[row], None, peak.prominence / 2))
        return any(abs(old.index - peak.index) <= reach for old in before)


def bank_shapes(run_or_model: Any, num_lags: int) -> list[BankShape]:
    """The shape of every lag kernel of a language model, layer by layer.

    As in Bunks et al. (2025) and Gaussian Process Attention (anonymous), figures 3 and 4.

    Args:
        run_or_model: a `Run`, or a model with `lag_kernels()`; the shapes before training are known only for
            runs.
        num_lags: how many lags, 0 to num_lags − 1.

    Returns:
        One BankShape for each layer that has a lag kernel; an empty list when none has.

    Raises:
        InputError: num_lags is below 1, or the run is not finished.

    >>> from types import SimpleNamespace
    >>> from nadaraya.interpret import bank_shapes
    >>> from nadaraya.kernels import ALiBi
    >>> model = SimpleNamespace(lag_kernels=lambda: [(0, ALiBi(2))])
    >>> bank_shapes(model, 3)[0].trained.shape  # heads, lags
    (2, 3)
    """
    if num_lags < 1:
        raise must_be("num_lags", "1 or more", num_lags)
    trained = _tables(run_or_model.lag_kernels(), num_lags)
    known = bool(trained) and hasattr(run_or_model, "load_model")
    initial = _tables(run_or_model.lag_kernels(initial=True), num_lags) if known else []
    before = {layer: table for layer, _, table in initial}
    return [
        BankShape(layer, added, before.get(layer), table, head_numbers(run_or_model, layer, len(table)))
        for layer, added, table in trained
    ]


def _tables(kernels: list[tuple[int, Kernel]], num_lags: int) -> list[tuple[int, bool, np.ndarray]]:
    """(layer, whether the kernel is an Exp, (H, L) logits) of every lag kernel."""
    found = []
    for layer, kernel in kernels:
        table = kernel.lag_logits(num_lags, causal=True).detach().double().cpu().numpy()
        found.append((layer, isinstance(kernel, Exp), np.atleast_2d(table)))
    return found


def _bumps(curve: np.ndarray, k: int | None, minimum: float) -> list[Peak]:
    finite = np.isfinite(curve)
    if not finite.any():
        return []
    return prominent_peaks(np.where(finite, curve, curve[finite].min()), k, minimum)

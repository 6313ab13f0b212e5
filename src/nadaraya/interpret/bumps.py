"""Bumps of banks beside a null: those of the start, of a reference run, and what chance puts near a peak."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nadaraya.errors import InputError, must_be
from nadaraya.interpret.banks import BankShape, Bump, bank_shapes
from nadaraya.interpret.lags import LagHistogram, LagPeak, lag_histogram, token_lag_histogram

if TYPE_CHECKING:
    from nadaraya.training import Run

_MEASURED = 1_000_000  # characters of a corpus whose tokens are counted: encoding more takes seconds
LEAST_SEPARATIONS = 30  # fewer say nothing about a histogram
_LEAST_COUNT = 10  # of a peak


@dataclass(frozen=True)
class PeakMatch:
    """How many bumps stand near the peaks of a corpus.

    Args:
        bumps: how many there are, n.
        matched: how many of them are near a peak, k.
        expected: how many would be, if bumps fell anywhere: n q.
        p_value: chance that k or more would be.

    >>> from nadaraya.interpret import match_peaks
    >>> match_peaks([20, 69, 72], peaks=[70], num_lags=256).matched
    2
    """

    bumps: int
    matched: int
    expected: float
    p_value: float


def match_peaks(lags: Sequence[int], peaks: Sequence[int], num_lags: int, tolerance: int = 3) -> PeakMatch:
    """Whether more bumps stand near the peaks of a corpus than chance puts there.

    If n bumps fell independently and uniformly over the lags 1 … num_lags − 2, where a bump can stand, the
    number near a peak would be binomial with q, the share of these lags that are near one. Bumps of one model
    are not independent: heads start alike, and a periodic term has a bump at every multiple of its period.
    The figures of an untrained bank, or of one trained on a shuffled text, are the stricter reference.

    Args:
        lags: of the n bumps.
        peaks: lags of the peaks.
        num_lags: of the curves in which the bumps were found.
        tolerance: the largest distance that is near, in lags, default 3.

    Returns:
        Both numbers, and the exact p-value P(K ≥ k).

    Raises:
        InputError: num_lags below 1, or a negative tolerance.

    >>> from nadaraya.interpret import match_peaks
    >>> round(match_peaks([20, 69, 72], peaks=[70], num_lags=256).p_value, 4)
    0.0022
    """
    from scipy.stats import binom

    if num_lags < 1:
        raise must_be("num_lags", "1 or more", num_lags)
    if tolerance < 0:
        raise must_be("tolerance", "0 or more", tolerance)

    def near(places: np.ndarray) -> np.ndarray:
        return (np.abs(places[:, None] - np.array(peaks, dtype=int)) <= tolerance).any(axis=1)

    matched = int(near(np.array(lags, dtype=int)).sum())
    share = float(near(np.arange(1, num_lags - 1)).mean()) if num_lags > 2 else 0.0
    p_value = float(binom.sf(matched - 1, len(lags), share))
    return PeakMatch(len(lags), matched, len(lags) * share, p_value)


@dataclass(frozen=True)
class BumpTable:
    """The bumps of a trained bank and of its references.

    Args:
        trained: of all layers, those of a layer in descending summed prominence.
        initial: those of the bank before training; None where that is not known.
        null: those of a reference run; None without one.
        peaks: lags of the corpus peaks that they are compared with, in tokens.
        num_lags: lags at which the banks were looked at.
        tolerance: the largest distance of a bump that is near a peak, in tokens.

    >>> import numpy as np
    >>> from nadaraya.interpret import BankShape, bump_table
    >>> curve = -np.arange(64) / 20 + 2 * np.exp(-(((np.arange(64) - 30) / 3) ** 2))
    >>> table = bump_table([BankShape(0, True, None, curve[None])], peaks=[31])
    >>> table.matches()["trained"].matched
    1
    """

    trained: tuple[Bump, ...]
    initial: tuple[Bump, ...] | None
    null: tuple[Bump, ...] | None
    peaks: tuple[int, ...]
    num_lags: int
    tolerance: int

    def matches(self) -> dict[str, PeakMatch]:
        """Bumps near peaks, of "trained" and, where they are known, of "initial" and "null"."""
        sets = {"trained": self.trained, "initial": self.initial, "null": self.null}
        return {
            name: match_peaks([bump.lag for bump in bumps], self.peaks, self.num_lags, self.tolerance)
            for name, bumps in sets.items()
            if bumps is not None
        }

    def rows(self) -> list[dict[str, Any]]:
        """The trained bumps as plain values, beside how many of each reference are at least as high.

        Keys: layer and heads (numbers from 0, as before any was removed), labels (LAYER.HEAD), lag, height
        and width (of the strongest head: prominence in logits, tokens at half of it), at_start, nearest_peak
        and distance in tokens (None without peaks), and as_high_at_start and as_high_in_null (None where
        these are not known).
        """
        found = []
        for bump in self.trained:
            distance, nearest = min(
                ((abs(peak - bump.lag), peak) for peak in self.peaks), default=(None, None)
            )
            found.append(
                {
                    "layer": bump.layer,
                    "heads": list(bump.heads),
                    "labels": bump.labels,
                    "lag": bump.lag,
                    "height": bump.prominence,
                    "width": bump.width,
                    "at_start": bump.at_start,
                    "nearest_peak": nearest,
                    "distance": distance,
                    "as_high_at_start": _as_high(self.initial, bump),
                    "as_high_in_null": _as_high(self.null, bump),
                }
            )
        return found


def bump_table(
    shapes: Sequence[BankShape],
    peaks: Sequence[int],
    null: Sequence[BankShape] | None = None,
    *,
    reach: int = 4,
    minimum: float = 0.25,
    tolerance: int = 3,
) -> BumpTable:
    """Find the bumps of a bank, trained and at its start, and of a reference.

    Args:
        shapes: of the layers, from `bank_shapes`; at least one.
        peaks: lags of the peaks of the corpus, in tokens.
        null: shapes of the reference, at the same lags; default none.
        reach: heads of a layer share a bump within so many lags, default 4.
        minimum: the smallest prominence of a bump, in logits, default 0.25.
        tolerance: the largest distance of a bump that is near a peak, in tokens, default 3.

    Returns:
        The table.

    Raises:
        InputError: no shapes.

    >>> import numpy as np
    >>> from nadaraya.interpret import BankShape, bump_table
    >>> shape = BankShape(0, True, None, np.array([[1.0, 0.5, 2.0, 0.0]]))
    >>> [row["lag"] for row in bump_table([shape], peaks=[]).rows()]
    [2]
    """
    if not shapes:
        raise must_be("shapes", "those of a model with a lag kernel", list(shapes))
    shapes, null = _distinct(shapes), None if null is None else _distinct(null)
    initial = [
        replace(shape, initial=None, trained=shape.initial) for shape in shapes if shape.initial is not None
    ]

    def found(given: Sequence[BankShape]) -> tuple[Bump, ...]:
        return tuple(bump for shape in given for bump in shape.shared_bumps(reach, minimum))

    num_lags = shapes[0].trained.shape[1]
    of_start, of_null = found(initial) if initial else None, None if null is None else found(null)
    return BumpTable(found(shapes), of_start, of_null, tuple(peaks), num_lags, tolerance)


def _distinct(shapes: Sequence[BankShape]) -> list[BankShape]:
    """Without the copies in later layers of a bank that layers share: its bumps would count several times."""
    found: list[BankShape] = []
    for shape in shapes:
        if not any(_is_copy(shape, other) for other in found):
            found.append(shape)
    return found


def _is_copy(shape: BankShape, other: BankShape) -> bool:
    pairs = ((shape.trained, other.trained), (shape.initial, other.initial))
    return all(a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs)


def bump_figures(
    run: "Run",
    null: "Run | None" = None,
    *,
    reach: int = 4,
    minimum: float = 0.25,
    tolerance: int = 3,
) -> dict[str, Any]:
    """The bumps of a run's banks, how many its start and a null show, and how many stand at corpus peaks.

    Args:
        run: a finished run on text with lag kernels.
        null: a reference, such as the same recipe with `data.shuffle=words`; its banks are looked at over the
            context of the run. Default none.
        reach, minimum, tolerance: as of `bump_table`.

    Returns:
        Plain values: "bumps", as `BumpTable.rows`; "matches", those of `BumpTable.matches`; "peaks", lags at
        which lines of the corpus end, in tokens (none for a run on token shards); and the settings.

    Raises:
        InputError: a run without lag kernels, not finished, or whose corpus cannot be read.

    >>> from nadaraya.interpret import bump_figures
    >>> from nadaraya.training import load_recipe, train
    >>> small = ["model.hidden_size=16", "model.variant=gpa-mul", "data.limit=9000", "data.context=64"]
    >>> run = train(load_recipe("demo", [*small, "training.steps=1", "training.warmup_steps=0"]), "run")
    >>> sorted(bump_figures(run)["matches"])
    ['initial', 'trained']
    """
    num_lags = run.text_recipe().data.context
    shapes = _shapes(run, num_lags)
    peaks = [] if run.on_shards else newline_peaks(newlines_in_tokens(run, run.corpus().text, num_lags))
    of_null = None if null is None else _shapes(null, num_lags)
    settings = {"reach": reach, "minimum": minimum, "tolerance": tolerance}
    table = bump_table(shapes, peaks, of_null, reach=reach, minimum=minimum, tolerance=tolerance)
    return {
        "num_lags": num_lags,
        **settings,
        "peaks": peaks,
        "bumps": table.rows(),
        "matches": {name: asdict(match) for name, match in table.matches().items()},
    }


def newlines_in_tokens(run: "Run", text: str, max_lag: int) -> LagHistogram:
    """Distances between newlines in the tokens of a run; of the start of a text where they differ."""
    if run.text_recipe().data.tokenizer == "characters":
        return lag_histogram(text, max_lag)
    return token_lag_histogram(run.tokenizer(), text[:_MEASURED], max_lag)


def clear_peaks(histogram: LagHistogram) -> list[LagPeak]:
    """The two most prominent peaks of a histogram, as far as they are seen often; none of a small one."""
    if histogram.total < LEAST_SEPARATIONS:
        return []
    return [peak for peak in histogram.peaks(2) if peak.count >= _LEAST_COUNT]


def newline_peaks(histogram: LagHistogram) -> list[int]:
    """Lags of clear peaks, ascending, without lag 1, that of blank lines."""
    return sorted(peak.lag for peak in clear_peaks(histogram) if peak.lag > 1)


def _shapes(run: "Run", num_lags: int) -> list[BankShape]:
    shapes = bank_shapes(run, num_lags)
    if not shapes:
        raise InputError(f"{run.path} must be a run with a lag kernel, got the variant {run.recipe.label}")
    return shapes


def _as_high(bumps: Sequence[Bump] | None, bump: Bump) -> int | None:
    return None if bumps is None else sum(other.prominence >= bump.prominence for other in bumps)

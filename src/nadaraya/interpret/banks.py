"""The shapes of lag kernels and their bumps, beside those of the start, of a reference run and of chance."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from nadaraya.errors import InputError, check_at_least, must_be
from nadaraya.interpret.labels import LabelledHeads, head_numbers
from nadaraya.interpret.lags import LagHistogram, Peak, lag_histogram, prominent_peaks, token_lag_histogram
from nadaraya.kernels import Exp

if TYPE_CHECKING:
    from nadaraya.training import Run

_MEASURED = 1_000_000  # characters of a corpus whose tokens are counted: encoding more takes seconds


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
    """The logits that the lag kernel of one layer adds: the log of the kernel.

    Args:
        layer: index of the layer (0-based).
        added: whether the kernel is an `Exp`, so that it is G itself which is added (Gaussian Process
            Attention, eq. 6) and not log G (Bunks et al. 2025, eq. 6).
        initial: (H, L) logits before training for lags 0 to L − 1; None when the start is not known.
        trained: (H, L) logits after training; −inf where a kernel is exactly zero.
        heads: the numbers of the heads, as before any was removed; default all from 0.

    >>> import numpy as np
    >>> from nadaraya.interpret.banks import BankShape
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
        return [_peaks(head, k, minimum) for head in self.trained]

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
            # A peak of at least half the prominence stood there before training.
            starts = () if self.initial is None else self.initial[rows]
            before = [old for head in starts for old in _peaks(head, None, centre.prominence / 2)]
            there = any(abs(old.index - centre.index) <= reach for old in before)
            heads = tuple([self.heads[row] for row in rows])
            bump = Bump(self.layer, centre.index, heads, centre.prominence, centre.width, there)
            ranked.append((sum(peak.prominence for peak, _ in members), bump))
        return [bump for _, bump in sorted(ranked, key=lambda pair: -pair[0])]


def bank_shapes(run_or_model: Any, num_lags: int) -> list[BankShape]:
    """The shape of every lag kernel of a language model, layer by layer.

    As in Gaussian Process Attention (anonymous), figures 3 and 4.

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
    check_at_least(1, num_lags=num_lags)

    def tables(**options: bool) -> list[tuple[int, bool, np.ndarray]]:
        found = []
        for layer, kernel in run_or_model.lag_kernels(**options):
            table = kernel.lag_logits(num_lags, causal=True).detach().double().cpu().numpy()
            found.append((layer, isinstance(kernel, Exp), np.atleast_2d(table)))
        return found

    trained = tables()
    known = trained and hasattr(run_or_model, "load_model")
    before = {layer: table for layer, _, table in tables(initial=True)} if known else {}
    return [
        BankShape(layer, added, before.get(layer), table, head_numbers(run_or_model, layer, len(table)))
        for layer, added, table in trained
    ]


def _peaks(curve: np.ndarray, k: int | None, minimum: float) -> list[Peak]:
    finite = np.isfinite(curve)
    if not finite.any():
        return []
    return prominent_peaks(np.where(finite, curve, curve[finite].min()), k, minimum)


@dataclass(frozen=True)
class PeakMatch:
    """Counts of the bumps that stand near the peaks of a corpus.

    Args:
        bumps: how many there are, n.
        matched: how many of them are near a peak, k.
        expected: how many would be, if bumps fell anywhere: n q.
        p_value: chance that k or more would be.

    >>> from nadaraya.interpret.banks import match_peaks
    >>> match_peaks([20, 69, 72], peaks=[70], num_lags=256).matched
    2
    """

    bumps: int
    matched: int
    expected: float
    p_value: float


def match_peaks(lags: Sequence[int], peaks: Sequence[int], num_lags: int, tolerance: int = 3) -> PeakMatch:
    """Test whether more bumps, at n lags, stand near the peaks of a corpus than chance puts there.

    Near is a distance of at most `tolerance`. If n bumps fell independently and uniformly over the lags
    1 … num_lags − 2, where a bump can stand, the number near a peak would be binomial with q, the share of
    these lags that are near one; the p-value is P(K ≥ k), exactly. Bumps of one model are not independent:
    heads start alike, and a periodic term has a bump at every multiple of its period. The numbers of an
    untrained bank, or of one trained on a shuffled text, are the stricter reference.
    """
    from scipy.stats import binom

    check_at_least(1, num_lags=num_lags)
    check_at_least(0, tolerance=tolerance)

    def near(lags: ArrayLike) -> np.ndarray:
        distances = np.array(lags, dtype=int)[:, None] - np.array(peaks, dtype=int)
        return (np.abs(distances) <= tolerance).any(axis=1)

    matched = int(near(lags).sum())
    share = float(near(range(1, num_lags - 1)).mean()) if num_lags > 2 else 0.0
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
    >>> from nadaraya.interpret.banks import BankShape, bump_table
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

        def as_high(bump: Bump, others: Sequence[Bump] | None) -> int | None:
            return None if others is None else sum(each.prominence >= bump.prominence for each in others)

        rows = []
        for bump in self.trained:
            nearest = min(self.peaks, key=lambda peak: (abs(peak - bump.lag), peak), default=None)
            row = {
                "layer": bump.layer,
                "heads": list(bump.heads),
                "labels": bump.labels,
                "lag": bump.lag,
                "height": bump.prominence,
                "width": bump.width,
                "at_start": bump.at_start,
                "nearest_peak": nearest,
                "distance": None if nearest is None else abs(nearest - bump.lag),
                "as_high_at_start": as_high(bump, self.initial),
                "as_high_in_null": as_high(bump, self.null),
            }
            rows.append(row)
        return rows


def bump_table(
    shapes: Sequence[BankShape],
    peaks: Sequence[int],
    null: Sequence[BankShape] | None = None,
    *,
    reach: int = 4,
    minimum: float = 0.25,
    tolerance: int = 3,
) -> BumpTable:
    """Find the bumps of a bank, trained and at its start, and of a reference, `null`, at the same lags.

    Args:
        shapes: of the layers, from `bank_shapes`; at least one.
        peaks: lags of the peaks of the corpus, in tokens.
        null: shapes of the reference; default none.
        reach: heads of a layer share a bump within so many lags, default 4.
        minimum: the smallest prominence of a bump, in logits, default 0.25.
        tolerance: the largest distance of a bump that is near a peak, in tokens, default 3.
    """
    if not shapes:
        raise must_be("shapes", "those of a model with a lag kernel", list(shapes))

    def bumps(given: Sequence[BankShape]) -> tuple[Bump, ...]:
        return tuple(bump for shape in given for bump in shape.shared_bumps(reach, minimum))

    shapes = _distinct(shapes)
    starts = [
        replace(shape, initial=None, trained=shape.initial) for shape in shapes if shape.initial is not None
    ]
    return BumpTable(
        bumps(shapes),
        bumps(starts) if starts else None,
        None if null is None else bumps(_distinct(null)),
        tuple(peaks),
        shapes[0].trained.shape[1],
        tolerance,
    )


def _distinct(shapes: Sequence[BankShape]) -> list[BankShape]:
    """Without the copies in later layers of a bank that layers share: its bumps would count several times."""
    found: dict[tuple[bytes, ...], BankShape] = {}
    for shape in shapes:
        tables = (shape.trained, shape.initial)
        found.setdefault(tuple(b"" if table is None else table.tobytes() for table in tables), shape)
    return list(found.values())


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

    def shapes(of: "Run") -> list[BankShape]:
        found = bank_shapes(of, num_lags)
        if not found:
            raise InputError(f"{of.path} must be a run with a lag kernel, got the variant {of.recipe.label}")
        return found

    trained, reference = shapes(run), None if null is None else shapes(null)
    peaks = [] if run.on_shards else newlines_in_tokens(run, run.corpus().text, num_lags).line_lengths()
    table = bump_table(trained, peaks, reference, reach=reach, minimum=minimum, tolerance=tolerance)
    return {
        "num_lags": num_lags,
        "reach": reach,
        "minimum": minimum,
        "tolerance": tolerance,
        "peaks": peaks,
        "bumps": table.rows(),
        "matches": {name: asdict(match) for name, match in table.matches().items()},
    }


def newlines_in_tokens(run: "Run", text: str, max_lag: int) -> LagHistogram:
    """Distances between newlines in the tokens of a run; of the start of a text where they differ."""
    if run.text_recipe().data.tokenizer == "characters":
        return lag_histogram(text, max_lag)
    return token_lag_histogram(run.tokenizer(), text[:_MEASURED], max_lag)

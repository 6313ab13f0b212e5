"""Probes: measurements of a study on every trained model, kept as plain values where the run folder is not.

A probe is a function from a finished run to a small mapping, named by `register`; `probes: [name]` in a study
file asks for it.
"""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from nadaraya.errors import InputError
from nadaraya.files import first_line
from nadaraya.names import named

if TYPE_CHECKING:
    from nadaraya.interpret.banks import BankShape
    from nadaraya.interpret.lags import LagHistogram
    from nadaraya.training import Run

_Probe = Callable[["Run"], dict[str, Any]]
_PROBES = dict[str, _Probe]()
LARGEST = 80_000  # characters of JSON that a probe may leave for a run
_LAGS = 256  # the longest lag that is kept
_WINDOWS = 16  # of the validation text, on which heads are scored
_SPAN = 16  # random tokens that are to be recalled
_PARTS_WINDOWS = 1024  # of each part of the text
_LENGTHS = (1, 2, 4, 8, 16)  # times the context of training
_TERMS = 4  # of the banks that are fitted to implied kernels
_GENERATED = 20_000  # characters, where training has generated no text


def probe_names() -> list[str]:
    """Names of the probes.

    >>> from nadaraya.study.probes import probe_names
    >>> probe_names()
    ['banks', 'bumps', 'newlines', 'heads', 'lengths', 'recall', 'parts', 'implied']
    """
    return list(_PROBES)


def register(name: str) -> Callable[[_Probe], _Probe]:
    """Name a probe of your own: a decorator of a function from a finished run to a small mapping.

    Args:
        name: one that no probe has.

    Raises:
        InputError: a name that is taken.

    >>> from nadaraya.study.probes import register
    >>> @register("parameters")
    ... def parameters(run):
    ...     return {"count": sum(value.numel() for value in run.load_model().parameters())}
    """
    return named(_PROBES, "probe", name)


def measure(name: str, run: "Run") -> dict[str, Any]:
    """The plain values that a probe finds.

    Args:
        name: of the probe.
        run: a finished run.

    Returns:
        Its values; {"error": reason} where the probe fails, whatever with: the run counts without it.
    """
    try:
        found = _PROBES[name](run)
        size = len(json.dumps(found, allow_nan=False, separators=(",", ":")))
        if size > LARGEST:
            raise InputError(f"{size:,} characters, more than the {LARGEST:,} that a probe may leave")
    except Exception as error:
        traceback.print_exc(file=sys.stderr)  # which goes to the log of the run
        return {"error": first_line(error)}
    return found


def lacks(row: Mapping[str, Any], *names: str) -> bool:
    """Return true where the figures of a finished run are without what one of some probes finds."""
    found = row.get("probes", {})
    return "loss" in row and any("error" in found.get(name, {"error": "absent"}) for name in names)


def stored_shapes(found: Mapping[str, Any]) -> "list[BankShape]":
    """The shapes that the probe `banks` has kept, one for each layer with a lag kernel."""
    from nadaraya.interpret.banks import BankShape

    shapes = []
    for layer in found["layers"]:
        trained, initial = _table(layer["trained"]), layer["initial"]
        if initial is not None:
            initial = np.broadcast_to(_table(initial), trained.shape)
        shapes.append(BankShape(layer["layer"], layer["added"], initial, trained))
    return shapes


def stored_histogram(found: Mapping[str, Any], text: str) -> "LagHistogram":
    """The histogram of "corpus" or "generated" that the probe `newlines` has kept."""
    from nadaraya.interpret.lags import LagHistogram

    return LagHistogram(np.array(found[text]["counts"]), found[text]["overflow"])


def _rows(table: np.ndarray) -> list[list[float | None]]:
    """Four digits, three decimals at the most; None for −inf."""
    return [
        [round(float(f"{value:.4g}"), 3) if np.isfinite(value) else None for value in row] for row in table
    ]


def _table(rows: list[list[float | None]]) -> np.ndarray:
    return np.array([[-np.inf if value is None else value for value in row] for row in rows])


@register("banks")
def _banks(run: "Run") -> dict[str, Any]:
    """Logits that every lag kernel adds, before and after training: one row per head."""
    from nadaraya.interpret import bank_shapes

    layers = []
    for shape in bank_shapes(run, min(run.text_recipe().data.context, _LAGS)):
        start = shape.initial
        if start is not None and (start == start[:1]).all():  # one row for all heads
            start = start[:1]
        layers.append(
            {
                "layer": shape.layer,
                "added": shape.added,
                "initial": None if start is None else _rows(start),
                "trained": _rows(shape.trained),
            }
        )
    return {"layers": layers}


@register("bumps")
def _bumps(run: "Run") -> dict[str, Any]:
    """Bumps of the banks beside those of their start, and how many stand where lines of the corpus end.

    Empty for a model without lag kernels.
    """
    from nadaraya.interpret import bump_figures

    return bump_figures(run) if run.lag_kernels() else {}


@register("newlines")
def _newlines(run: "Run") -> dict[str, Any]:
    """Distances between newlines in the corpus and in the text that the model has generated."""
    from nadaraya.evaluation import sample_text
    from nadaraya.interpret import lag_histogram

    generated = run.sample or sample_text(run.load_model(), run.tokenizer(), _GENERATED)
    found = {}
    for name, text in (("corpus", run.corpus().text), ("generated", generated)):
        histogram = lag_histogram(text, _LAGS)
        found[name] = {
            "characters": len(text),
            "counts": histogram.counts.tolist(),
            "overflow": histogram.overflow,
            "peaks": [asdict(peak) for peak in histogram.peaks()],
        }
    return found


@register("heads")
def _heads(run: "Run") -> dict[str, Any]:
    """The scores of every head, and the rank correlation of those of its bank with the loss without it."""
    from nadaraya.interpret.heads import head_report
    from nadaraya.interpret.windows import validation_windows

    report = head_report(run.load_model(), validation_windows(run, _WINDOWS))
    heads = [
        {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in head.items()}
        for head in map(asdict, report.heads)
    ]
    return {
        "loss": report.loss, "tokens": report.tokens, "heads": heads, "correlations": report.correlations(),
    }  # fmt: skip


@register("lengths")
def _lengths(run: "Run") -> dict[str, Any]:
    """The loss of the same tokens at lengths beyond the context of training, alone and with controls."""
    from nadaraya.attention.rotary import RotaryEmbedding
    from nadaraya.evaluation.lengths import Extended, length_losses
    from nadaraya.interpret.windows import validation_tokens

    context = run.text_recipe().data.context
    tokens, document_token = validation_tokens(run)
    lengths = [context * times for times in _LENGTHS if context * times < len(tokens)]
    model = run.load_model()
    controls: dict[str, Any] = {
        "window": {"sliding_window": context},
        "shuffled": {"far_context": "shuffled"},
    }
    if any(isinstance(part, RotaryEmbedding) for part in model.modules()):
        controls |= {how: {"extended": how} for how in get_args(Extended)}
    measured = {
        name: length_losses(model, tokens, lengths, document_token=document_token, **control)
        for name, control in {"": {}, **controls}.items()
    }
    alone = measured.pop("")
    losses = [asdict(loss) for loss in alone.lengths]
    for loss in losses:
        del loss["bits_per_byte"]
    return {
        "context": context, "windows": alone.windows, "stride": alone.stride, "lengths": losses,
        "controls": {name: [each.cross_entropy for each in of.lengths] for name, of in measured.items()},
    }  # fmt: skip


@register("recall")
def _recall(run: "Run") -> dict[str, Any]:
    """Shares of random tokens that are given again, by distance."""
    from nadaraya.evaluation import recall_by_distance
    from nadaraya.interpret.windows import validation_tokens

    context, tokens = run.text_recipe().data.context, validation_tokens(run)[0]
    quarters = (1, 2, *(4 * times for times in _LENGTHS))
    distances = sorted({max(_SPAN, context * each // 4) for each in quarters})
    distances = [each for each in distances if each + 2 * _SPAN <= len(tokens)]
    found = recall_by_distance(run.load_model(), tokens, distances, span=_SPAN)
    return {"distances": [asdict(each) for each in found]}


@register("parts")
def _parts(run: "Run") -> dict[str, Any]:
    """The loss of training, validation and, if there is one, test text, on as many windows of each."""
    from nadaraya.data.tokenizer import encode_text
    from nadaraya.interpret.windows import Windows, windows_of
    from nadaraya.training.run import Part

    model, tokenizer, context = run.load_model(), run.tokenizer(), run.text_recipe().data.context
    found = {}
    for part in get_args(Part):
        try:
            tokens = run.shards(part) if run.on_shards else encode_text(tokenizer, run.text(part))
        except InputError:
            if part != "test":  # which not every run has
                raise
            continue
        rows = windows_of(tokens, context + 1, _PARTS_WINDOWS)
        found[part] = Windows(rows[:, :-1], rows[:, 1:]).loss(model)
    return found


@register("implied")
def _implied(run: "Run") -> dict[str, Any]:
    """The kernel of the lag that every layer implies, and how well banks with and without periods fit it."""
    from nadaraya.interpret.implied import fitted_kernels, implied_summary

    found = implied_summary(*fitted_kernels(run, num_terms=_TERMS, windows=_WINDOWS))
    for layer in found["layers"]:
        del layer["pairs"]
        for head in layer["heads"]:
            head["curve"] = [None if value is None else round(value, 3) for value in head["curve"][:_LAGS]]
            head["fits"] = {name: fit["r2"] for name, fit in head["fits"].items()}
    return found

"""Runs as reports and figures need them: plain data."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from nadaraya.errors import InputError
from nadaraya.files import reading
from nadaraya.interpret.banks import BankShape, bank_shapes, newlines_in_tokens
from nadaraya.interpret.lags import LagHistogram
from nadaraya.interpret.reach import LagWeights, lag_weights
from nadaraya.report.palette import Style, variant_styles

if TYPE_CHECKING:
    from nadaraya.training import Run
    from nadaraya.training.lengths import LengthTable

_Run = TypeVar("_Run", bound="RunData")
_UNSTYLED = Style("slate")


@dataclass(frozen=True)
class RunData:
    """One run as figures and reports show it.

    Args:
        name: of the run.
        folder: name of its folder.
        variant: the attention variant or the model.
        metrics: records as in metrics.jsonl: of kind "train" (with step, loss, seconds), "validation" (step,
            loss) or "final" (also bits_per_byte, parameters, kernel_parameters, step_seconds).
        setup: one sentence: what was trained, on what, for how long.
        recipe: the recipe as YAML.
        sample: the text that it generated; default none.
        text: what decides the validation text and its tokens: the losses of runs that differ in it do not
            compare.
        corpus: name and content of the text that it learned from; default none.
        newlines: how far apart newlines of the corpus stand in tokens, the lags of its kernels; default none.
        problem: why its text could not be read; default "".
        context: tokens that the model sees at once.
        banks: its lag kernels, layer by layer; default none.
        reads: its weights by lag, layer by layer; default not known.
        lengths: its losses beyond the length of training; default not measured.
        label: what tells it from the others of a report; `labelled` sets it.
        style: colour and dash of its lines; `labelled` sets it.

    >>> from nadaraya.report.runs import RunData
    >>> run = RunData("demo", "runs/demo", "rope", [{"kind": "final", "step": 600, "loss": 1.25}])
    >>> run.finished, run.loss
    (True, 1.25)
    """

    name: str
    folder: str
    variant: str
    metrics: Sequence[Mapping[str, Any]]
    setup: str = ""
    recipe: str = ""
    sample: str = ""
    text: tuple[Any, ...] = ()
    corpus: tuple[str, str] | None = None
    newlines: LagHistogram | None = None
    problem: str = ""
    context: int = 256
    banks: Sequence[BankShape] = ()
    reads: Sequence[LagWeights] = ()
    lengths: "LengthTable | None" = None
    label: str = ""
    style: Style = _UNSTYLED

    @classmethod
    def of(cls, run: "Run", **values: Any) -> Self:
        """Data of a run folder, with these values besides name, folder, variant, metrics and recipe."""
        recipe = run.recipe
        return cls(run.name, run.path.name, recipe.label, run.metrics, recipe=recipe.to_yaml(), **values)

    @property
    def finished(self) -> bool:
        """Training reached its last step."""
        return bool(self.final)

    @cached_property
    def final(self) -> Mapping[str, Any]:
        """The final record; empty while unfinished."""
        return next((record for record in self.metrics if record["kind"] == "final"), {})

    @property
    def step(self) -> int:
        """The last step that was recorded."""
        return int(max((record["step"] for record in self.metrics), default=0))

    @property
    def loss(self) -> float | None:
        """nats/token over the whole validation text; of the validation sample while unfinished."""
        newest = float(self.validation[-1, 1]) if len(self.validation) else None
        return self.final.get("loss", newest)

    @property
    def rank(self) -> float | None:
        """The metric by which runs are sorted, the best of which is the least; None where there is none."""
        return self.loss

    @cached_property
    def train(self) -> np.ndarray:
        """(n, 3) step, loss, seconds of training so far."""
        return self._series("train", "step", "loss", "seconds")

    @property
    def validation(self) -> np.ndarray:
        """(m, 2) step, loss."""
        return self.validated("loss")

    def validated(self, key: str) -> np.ndarray:
        """(m, 2) step and one number, such as "top1", of every validation that has it."""
        return self._series("validation", "step", key)

    def by(self, against: str, curve: np.ndarray) -> np.ndarray:
        """A curve of (step, number) by "step", or by "seconds" of training, empty where none was timed."""
        if against == "step":
            return curve
        if not len(self.train) or not len(curve):
            return np.empty((0, 2))
        steps, seconds = np.append(0, self.train[:, 0]), np.append(0, self.train[:, 2])
        return np.column_stack([np.interp(curve[:, 0], steps, seconds), curve[:, 1]])

    def _series(self, kind: str, *keys: str) -> np.ndarray:
        found = [record for record in self.metrics if record["kind"] == kind]
        rows = [[record[key] for key in keys] for record in found if all(key in record for key in keys)]
        table = np.array(rows, dtype=float).reshape(-1, len(keys))
        return table[np.isfinite(table).all(axis=1)]


def read_run(run: "Run") -> RunData:
    """Everything that a report shows of a run on text: its corpus and, when it is finished, its lag kernels.

    Args:
        run: an opened run folder.

    Returns:
        The data.

    Raises:
        InputError: it is a run on images, for `read_image_run`, or a file of it is damaged.

    >>> from nadaraya.report import read_run
    >>> from nadaraya.training import Run
    >>> read_run(Run("absent"))
    Traceback (most recent call last):
    nadaraya.errors.InputError: absent is not a run folder: it has no config.yaml
    """
    recipe = run.text_recipe()
    model, data, training = recipe.model, recipe.data, recipe.training
    corpus, reads, problem = None, list[LagWeights](), ""
    banks = bank_shapes(run, data.context) if run.final else []
    try:  # a damaged model was refused above; a text that is gone is said on the page
        if not run.on_shards:
            found = run.corpus()
            corpus = (found.name, found.text)
        reads = lag_weights(run) if run.final else []
    except InputError as error:
        problem = str(error)
    with reading(run.path / "sample.txt", "a text in UTF-8"):
        sample = run.sample
    newlines = newlines_in_tokens(run, corpus[1], data.context) if corpus and banks else None
    of_text = f", first {data.limit:,} characters" if data.limit else ""
    of_text += f", wrapped at {data.wrap}" if data.wrap else ""
    of_text += f", {data.shuffle} shuffled" if data.shuffle else ""
    return RunData.of(
        run,
        setup=(
            f"{model.num_hidden_layers} layers, {model.num_attention_heads} heads, "
            f"width {model.hidden_size}, context {data.context}; "
            f"{training.steps:,} steps of {training.batch_size} windows; "
            f"corpus: {Path(data.corpus).name}{of_text}."
        ),
        sample=sample or "",
        text=(
            *(data.corpus, data.limit, data.wrap, data.shuffle),
            *(data.validation_fraction, data.tokenizer, data.vocabulary),
        ),
        corpus=corpus,
        newlines=newlines,
        problem=problem,
        context=data.context,
        banks=banks,
        reads=reads,
        lengths=run.lengths,
    )


def labelled(runs: Sequence[_Run]) -> list[_Run]:
    """Copies with labels (variant; where it repeats, name, then folder) and styles that tell them apart."""
    labels = [run.variant for run in runs]
    for distinction in ("name", "folder"):
        counts = Counter(labels)
        labels = [
            f"{run.variant} · {getattr(run, distinction)}" if counts[label] > 1 else label
            for run, label in zip(runs, labels, strict=True)
        ]
    styles = variant_styles(run.variant for run in runs)
    return [
        replace(run, label=label, style=style) for run, label, style in zip(runs, labels, styles, strict=True)
    ]


def shown(given: Sequence[_Run]) -> dict[str, Any]:
    """Values of runs that the sections on texts and on images share, as the templates name them."""
    runs, setups = labelled(given), defaultdict(list)
    for run in runs:
        setups[run.setup].append(run.label)
    comparable = len({run.text for run in runs}) == 1

    def order(run: _Run) -> tuple[bool, float]:
        return not run.finished, run.rank if comparable and run.rank is not None else math.inf

    ranked = sorted(runs, key=order)
    known = comparable and ranked[0].finished and ranked[0].rank is not None
    return {
        "runs": runs,
        "setups": setups,
        "comparable": comparable,
        "unfinished": [run.label for run in runs if not run.finished],
        "ranked": ranked,
        "best": ranked[0] if known else None,
    }


def leading(runs: Sequence[RunData], least: Sequence[str], largest: Sequence[str] = ()) -> dict[str, float]:
    """The best of each column of a table of final records, where finished runs differ in it."""
    best = {}
    for column in (*least, *largest):
        values = {run.final[column] for run in runs if run.final.get(column) is not None}
        if len(values) > 1:
            best[column] = min(values) if column in least else max(values)
    return best

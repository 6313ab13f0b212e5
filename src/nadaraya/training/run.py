"""Run folders, read: the recipe, the metrics, the trained model and what it started from."""

from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import load_file
from safetensors.torch import load_model as load_weights
from torch import nn

from nadaraya.errors import InputError, must_be
from nadaraya.files import reading, sha256
from nadaraya.kernels import Kernel
from nadaraya.stored import Stored, read_stored
from nadaraya.training import folder as layout
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.kernels import kernel_parameters, read_lag_kernels
from nadaraya.training.lengths import LengthTable
from nadaraya.training.metrics import digest_of, read_metrics
from nadaraya.training.recipe import read_recipe
from nadaraya.training.schema import PositiveInt
from nadaraya.training.text_recipe import Recipe

if TYPE_CHECKING:
    from pandas import DataFrame
    from transformers import PreTrainedTokenizerFast

    from nadaraya.data import Corpus, TokenShards
    from nadaraya.data.images.sources import ImageSet


Part = Literal["train", "validation", "test"]


class _Text(Stored):
    """The content of text.json."""

    sha256: str
    shards: bool = False


class _Images(Stored):
    """The content of images.json."""

    classes: tuple[str, ...]
    channels: Literal[1, 3]
    steps: PositiveInt
    sha256: str


class Run:
    """A run folder that `train` made.

    Args:
        path: the folder.

    Attributes:
        path: the folder.
        recipe: the resolved recipe that it was trained from.

    Raises:
        InputError: it is not one.

    >>> from nadaraya.training import Run
    >>> Run("no-such-folder")
    Traceback (most recent call last):
    nadaraya.errors.InputError: no-such-folder is not a run folder: it has no config.yaml
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe = read_recipe(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def _text(self) -> _Text:
        return read_stored(self.path / layout.TEXT_FILE, _Text, "the text of a run")

    @property
    def _images(self) -> _Images:
        return read_stored(self.path / layout.IMAGES_FILE, _Images, "the images of a run")

    def _repr_html_(self) -> str:
        """HTML for notebooks: the recipe in short and the latest metrics."""
        latest = self.final or next(reversed(self.series("validation")), {"step": 0})
        shown = {"folder": self.path, "variant": self.recipe.label, "seed": self.recipe.seed}
        shown |= {"updates": f"{latest['step']} of {self.steps}" + ("" if self.final else ", not finished")}
        shown |= {k: v for k, v in latest.items() if isinstance(v, int | float) and k != "step"}
        rows = (
            f"<tr><th>{escape(key.replace('_', ' '))}</th><td>{escape(str(value))}</td></tr>"
            for key, value in shown.items()
        )
        return f"<table><caption>{escape(self.name)}</caption>{''.join(rows)}</table>"

    def table(self, kind: str = "train") -> "DataFrame":
        """The records of one kind as a table.

        Args:
            kind: "train", "validation" or "final", default "train".

        Returns:
            A pandas DataFrame, a row a record, its index the step.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ModuleNotFoundError:
            raise InputError("Run.table needs pandas: pip install pandas") from None
        records = [
            {key: record[key] for key in record if key not in ("kind", "sha256")}
            for record in self.series(kind)
        ]
        return DataFrame.from_records(records, index="step" if records else None)

    @property
    def name(self) -> str:
        """The name in its recipe."""
        return self.recipe.name

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """Every record of metrics.jsonl, oldest first.

        Raises:
            InputError: it is damaged, or was edited after the run was finished.
        """
        path = self.path / layout.METRICS_FILE
        records = read_metrics(path)
        if records and records[-1]["kind"] == "final":
            final = dict(records[-1])
            expected = dict(final.pop("sha256", {})).get(layout.METRICS_FILE)
            if expected != digest_of([*records[:-1], final]):
                raise _edited(path)
        return records

    def series(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind: "train", "validation" or "final"."""
        return [record for record in self.metrics if record["kind"] == kind]

    @property
    def final(self) -> dict[str, Any] | None:
        """The last record of a finished run (loss, bits_per_byte, parameters, …); None before that."""
        return next((record for record in self.series("final") if record["step"] >= self.steps), None)

    def check_files(self, *names: str) -> None:
        """Refuse files of a finished run that are not those which its training wrote."""
        if self.final is None:
            return
        for name in names:
            path = self.path / name
            with reading(path):
                digest = sha256(path)
            if digest != self.final["sha256"].get(name):
                raise _edited(path)

    @property
    def steps(self) -> int:
        """Updates of the whole run."""
        if isinstance(self.recipe, ImageRecipe):
            return self._images.steps
        return self.recipe.training.steps

    @property
    def measured_on(self) -> dict[str, Any]:
        """Data that validation metrics depend on; those of two runs compare where it agrees."""
        if isinstance(self.recipe, ImageRecipe):
            return {"images": self._images.sha256, "image_size": self.recipe.model.image_size}
        path, sharded = self.path / layout.TOKENIZER_FILE, self._text.shards  # the validation part is theirs
        with reading(path):
            tokenizer = sha256(path)
        return {
            "text": self._text.sha256,
            "tokenizer": tokenizer,
            "validation_fraction": None if sharded else self.recipe.data.validation_fraction,
            "documents": self.recipe.data.documents if sharded else None,
            "context": self.recipe.data.context,
        }

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of an image run; an InputError for a run on text."""
        self.image_recipe()
        return self._images.classes

    def image_recipe(self) -> ImageRecipe:
        """The recipe of an image run; an InputError for a run on text."""
        if isinstance(self.recipe, ImageRecipe):
            return self.recipe
        raise InputError(f"{self.path} must be a run on images, got one on text")

    def text_recipe(self) -> Recipe:
        """The recipe of a run on text; an InputError for an image run."""
        if isinstance(self.recipe, Recipe):
            return self.recipe
        raise InputError(f"{self.path} must be a run on text, got one on images")

    @property
    def sample(self) -> str | None:
        """The text generated at the end of training, prompt included; None when there is none."""
        path = self.path / layout.SAMPLE_FILE
        return path.read_text(encoding="utf-8") if path.is_file() else None

    @property
    def lengths(self) -> LengthTable | None:
        """The losses beyond the length of training; None where none were written."""
        path = self.path / layout.LENGTHS_FILE
        return read_stored(path, LengthTable, "losses by length") if path.is_file() else None

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer of a run on text."""
        from nadaraya.data import tokenizer_from_file

        self.text_recipe()
        self.check_files(layout.TOKENIZER_FILE)
        return tokenizer_from_file(self.path)

    def corpus(self) -> "Corpus":
        """The text of the run, training and validation parts together, loaded again from its source.

        It is the text that the model was trained on: where `data.wrap` or `data.shuffle` changed it, so here.

        Raises:
            InputError: it cannot be read, was changed since, or the run was trained on token shards, which
                `shards` opens.
        """
        from nadaraya.data import load_corpus

        data = self.text_recipe().data
        if self.on_shards:
            raise InputError(f"{self.path} was trained on token shards, {data.corpus}, which are no text")
        corpus = load_corpus(data.corpus, **data.corpus_options())
        if corpus.sha256 != self._text.sha256:
            raise InputError(f"the text {data.corpus} is not that of {self.path}: restore it")
        return corpus

    def text(self, part: Part = "validation") -> str:
        """A part of the text of `corpus`, or "test": as much as validates, behind `data.limit` in its source.

        Raises:
            InputError: as of `corpus`, or there is no limit, or less text behind it.
        """
        from nadaraya.data import load_corpus

        data = self.text_recipe().data
        train, validation = self.corpus().split(data.validation_fraction)
        if part != "test":
            return validation if part == "validation" else train
        changes = data.corpus_options() | {"limit": len(validation), "skip": data.limit or 0}
        text = "" if data.limit is None else load_corpus(data.corpus, **changes).text
        if len(text) < len(validation):
            raise InputError(f"{self.path} has no test text: too little follows data.limit, or there is none")
        return text

    @property
    def on_shards(self) -> bool:
        """True for a run on text that was trained on token shards."""
        self.text_recipe()
        return (self.path / layout.TEXT_FILE).is_file() and self._text.shards

    def shards(self, part: str = "validation") -> "TokenShards":
        """The token shards of the run, opened again.

        Args:
            part: "train" or "validation", default "validation".

        Raises:
            InputError: the run was trained on a text in memory, or the shards are damaged or not those of it.
        """
        from nadaraya.data import TokenShards

        corpus = self.text_recipe().data.corpus
        if not self.on_shards:
            raise InputError(f"{self.path} was trained on the text {corpus}, not on token shards")
        shards = TokenShards(corpus, part)
        if shards.sha256 != self._text.sha256:
            raise InputError(f"the token shards {corpus} are not those that {self.path} was trained on")
        return shards

    def images(self, source: str | None = None) -> "ImageSet":
        """The images of the run, opened again from their source.

        Args:
            source: others in their place, as `nadaraya.data.images.open_images` takes them; default None.

        Raises:
            InputError: they cannot be read, or have other classes or channels than those of the run.
        """
        from nadaraya.data.images import open_images
        from nadaraya.training.images import open_recipe_images

        recipe, trained = self.image_recipe(), self._images
        if source is None:
            images = open_recipe_images(recipe)
        else:
            images = open_images(source, corrupt=recipe.data.corrupt, channels=trained.channels)
        if (images.classes, images.channels) != (trained.classes, trained.channels):
            given, wanted = (
                f"{each.channels} channels and {len(each.classes)} classes ({', '.join(each.classes[:3])}, …)"
                for each in (images, trained)
            )
            raise InputError(f"{images.name} has {given}, the model of {self.path} was trained on {wanted}")
        return images

    @property
    def weights(self) -> str:
        """Name of the weights that `load_model` takes by default: "averaged" where there is an average."""
        averaged = isinstance(self.recipe, ImageRecipe) and self.recipe.training.ema_decay is not None
        return "averaged" if averaged else "trained"

    def load_model(self, initial: bool = False, weights: str | None = None) -> Any:
        """The trained model, in eval mode, on the CPU.

        Args:
            initial: put the kernel parameters back to what they were before training; all else stays trained.
            weights: "trained", those of the last update; "averaged", their moving average; "best", those of
                the best validation (`training.keep_best`); default None: `Run.weights`.

        Returns:
            The model: `KernelGPTForCausalLM` of a run on text, timm's of one on images.

        Raises:
            InputError: the run is not finished, or a file is damaged or does not belong to it.
        """
        self._check_finished()
        files, chosen = {"trained": layout.MODEL_FILE}, weights or self.weights
        if self.weights == "averaged":
            files["averaged"] = layout.AVERAGE_FILE
        if self.recipe.training.keep_best:
            files["best"] = layout.BEST_FILE
        if chosen not in files:
            raise must_be(f"weights of {self.path}", " or ".join(map(repr, files)), chosen)
        path = self.path / files[chosen]
        if isinstance(self.recipe, ImageRecipe):
            model = self.recipe.build_model(len(self.classes), self._images.channels)
            self.check_files(layout.IMAGES_FILE)
        else:
            model = self._load_text_model()
        if chosen != "trained" or isinstance(self.recipe, ImageRecipe):
            self.check_files(path.name)
            with reading(path, "the model of this run"):
                load_weights(model, str(path))
        if initial:
            path = self.path / layout.INITIAL_KERNELS_FILE
            with reading(path, "the initial kernels of this model"), torch.no_grad():
                values = load_file(path)
                for name, parameter in kernel_parameters(model):
                    parameter.copy_(values[name])
        return model.eval()

    def lag_kernels(self, initial: bool = False) -> list[tuple[int, Kernel]]:
        """The trained lag kernels of a run on text, read without its model, which takes seconds to build.

        Args:
            initial: what they were before training; default False.

        Returns:
            Layer index and kernel of every layer whose position is a kernel of the lag.

        Raises:
            InputError: the run is not finished, is one on images, or a file is damaged.
        """
        self.text_recipe()
        self._check_finished()
        self.check_files(layout.CONFIGURATION_FILE, layout.MODEL_FILE)
        weights = self.path / (layout.INITIAL_KERNELS_FILE if initial else layout.MODEL_FILE)
        return read_lag_kernels(weights, self.path / layout.CONFIGURATION_FILE)

    def _check_finished(self) -> None:
        if self.final is None or not (self.path / layout.MODEL_FILE).is_file():
            done = max((record["step"] for record in self.metrics), default=0)
            raise InputError(
                f"{self.path} has no trained model yet (step {done} of {self.steps}): run "
                "the same `nadaraya train` command again to finish it"
            )
        self.check_files(layout.RECIPE_FILE, layout.INITIAL_KERNELS_FILE)

    def _load_text_model(self) -> nn.Module:
        from nadaraya.models import KernelGPTForCausalLM
        from nadaraya.models.quiet import without_bars

        path = self.path / layout.MODEL_FILE
        self.check_files(layout.CONFIGURATION_FILE, layout.MODEL_FILE)
        with reading(path, "the model of this run"), without_bars():
            loaded: Any = KernelGPTForCausalLM.from_pretrained(
                self.path, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        model, report = loaded
        if report["missing_keys"]:
            raise InputError(f"{path} is damaged: it lacks {sorted(report['missing_keys'])[0]}")
        return model


def _edited(path: Path) -> InputError:
    return InputError(f"{path} is not as the training of this run left it: edited or damaged; restore it")

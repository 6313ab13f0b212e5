"""Recipes: everything a run is made from, as checked models that read and write YAML.

Every key has a default; `task` says whether a recipe is one of text (the default, `Recipe`) or of images.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, TypeAdapter, ValidationInfo, field_validator, model_validator

from nadaraya.attention.suffixes import renamed
from nadaraya.data.corpus import Shuffled
from nadaraya.data.tokenizer import SMALLEST_VOCABULARY
from nadaraya.errors import InputError, must_be, shown, unknown_name
from nadaraya.files import exists, is_file, is_folder
from nadaraya.names import built_in_recipes, means_path
from nadaraya.plain_yaml import nested, parse_yaml, put, read_yaml
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.optimisation import TrainingRecipe
from nadaraya.training.schema import (
    FORMAT,
    LONGEST_NAME,
    BaseRecipe,
    Fraction,
    OpenFraction,
    PositiveInt,
    Section,
    Settings,
)

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

# What the parts of a model raise when their options are not of a kind that they know.
_REFUSALS = (
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    LookupError,
    RuntimeError,
)
_ENDINGS = (".yaml", ".yml")
_WRITTEN_OUT = {"variant", "variant_options", "dropout", "extra"}
_MOST_EXTENDED = 20  # recipes on top of each other
# Of the model's configuration: what the data, or the model itself, decides.
_SET_ELSEWHERE = (
    "vocab_size",
    "max_position_embeddings",
    "layer_types",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "variant_names",
)


class ModelRecipe(Section):
    """The model: `KernelGPTConfig` says what its arguments mean.

    >>> from nadaraya.training import ModelRecipe
    >>> ModelRecipe(variant="gpa-mul").hidden_size
    128
    """

    prefix: ClassVar[str] = "model."
    preset: str | None = None
    """Sizes and other arguments by name: nanochat's `nano-d12` with any depth, or `nano-d12-gka`; `extra` and
    `variant` go over those of the preset."""
    hidden_size: Annotated[int, Field(gt=0, le=2**20)] = 128
    """Width of the model; a multiple of the heads."""
    num_hidden_layers: Annotated[int, Field(gt=0, le=4096)] = 4
    """Number of blocks."""
    num_attention_heads: Annotated[int, Field(gt=0, le=2**20)] = 4
    """Heads per block."""
    variant: str | list[str] = "rope"
    """Attention variant; a list of them repeats over the blocks."""
    variant_options: Settings = Field(default_factory=dict)
    """Settings of the variant."""
    dropout: Fraction = 0.0
    """Of activations, in training."""
    extra: Settings = Field(default_factory=dict)
    """Any other argument of `KernelGPTConfig`."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, given: Any) -> Any:
        """The values of the preset; what is not of the right type is left to be refused."""
        name, extra = (
            (given.get(key) for key in ("preset", "extra")) if isinstance(given, Mapping) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(extra, Mapping | None):
            return given
        from nadaraya.models.presets import preset_fields

        fields = preset_fields(name, given.get("variant"))
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
            if key in fields and given.get(key, fields[key]) != fields[key]:
                accepted = f"{fields[key]}, that of the preset {name}, or left out"
                raise must_be(f"recipe key model.{key}", accepted, given[key])
        own = {key: value for key, value in fields.items() if key in cls.model_fields}
        rest = {key: value for key, value in fields.items() if key not in (*own, *_SET_ELSEWHERE)}
        return {**own, **given, "extra": {**rest, **(extra or {})}}


class DataRecipe(Section):
    """The text and what its tokens are.

    >>> from nadaraya.training import DataRecipe
    >>> DataRecipe(corpus="dickens").context
    256
    """

    prefix: ClassVar[str] = "data."
    corpus: str = "embedded"
    """`embedded`, `dickens`, or the path of a text file, of a folder of them, or of a folder of token shards,
    which has its tokenizer and its validation part."""
    tokenizer: Literal["characters", "bytes", "bpe"] = "characters"
    """What a token of a text is: a character of it, a byte of UTF-8, or byte pairs found in the training
    part; bytes and byte pairs know every other text, too. Token shards have a tokenizer of their own."""
    vocabulary: Annotated[int, Field(ge=SMALLEST_VOCABULARY, le=10**6)] | None = None
    """Number of tokens of `bpe` (null: 4096)."""
    context: Annotated[int, Field(ge=2, lt=2**31)] = 256
    """Tokens in a window."""
    validation_fraction: OpenFraction = 0.1
    """The part at the end of the text that is not trained on."""
    limit: PositiveInt | None = None
    """Characters of the text that are used (null: all of it)."""
    wrap: PositiveInt | None = None
    """A control: columns at which paragraphs are joined and wrapped anew (null: lines as they are)."""
    shuffle: Shuffled | None = None
    """A control: what of the text, training and validation part, is in random order (null: nothing)."""
    documents: Literal["packed", "joined"] = "packed"
    """Of token shards: attention stays inside each document (`packed`) or sees the window (`joined`)."""
    record: bool = False
    """Of token shards: write the numbers of every update's windows to windows.jsonl, some bytes for each."""

    @model_validator(mode="after")
    def _check_vocabulary(self) -> Self:
        if self.vocabulary is not None and self.tokenizer != "bpe":
            accepted = f"null where data.tokenizer is {self.tokenizer} (bpe alone has a vocabulary to choose)"
            raise must_be("recipe key data.vocabulary", accepted, self.vocabulary)
        return self

    def corpus_options(self) -> dict[str, Any]:
        """Keywords of `nadaraya.data.load_corpus`."""
        return {"limit": self.limit, "wrap": self.wrap, "shuffle": self.shuffle}

    def byte_pair_options(self) -> dict[str, Any]:
        """Keywords of `nadaraya.data.train_byte_pair_tokenizer`."""
        return {} if self.vocabulary is None else {"vocabulary": self.vocabulary}


class Recipe(BaseRecipe):
    """A language model's run.

    >>> from nadaraya.training import Recipe
    >>> Recipe(training={"steps": 100}).training.steps
    100
    >>> Recipe.from_mapping({"model": {"varaint": "gpa"}})
    Traceback (most recent call last):
    nadaraya.errors.InputError: recipe key must be one of ... did you mean 'model.variant'?
    """

    task: Literal["text"] = "text"
    """What is trained."""
    model: ModelRecipe = Field(default_factory=ModelRecipe)
    data: DataRecipe = Field(default_factory=DataRecipe)
    training: TrainingRecipe = Field(default_factory=TrainingRecipe)

    @field_validator("training", mode="before")
    @classmethod
    def _batch_of_tokens(cls, training: Any, checked: ValidationInfo) -> Any:
        """`batch_size` from `batch_tokens`; what is not of the right type is left to be refused."""
        given = training.model_dump() if isinstance(training, TrainingRecipe) else training
        tokens = given.get("batch_tokens") if isinstance(given, Mapping) else None
        if "data" not in checked.data or not isinstance(tokens, int) or tokens <= 0:
            return training
        context = checked.data["data"].context
        if tokens % context:
            raise must_be(
                "recipe key training.batch_tokens", f"a multiple of data.context = {context}", tokens
            )
        return {**given, "batch_size": tokens // context}

    @property
    def label(self) -> str:
        """The attention variant; those of a hybrid joined by "+"."""
        variant = self.model.variant
        return variant if isinstance(variant, str) else "+".join(variant)

    @property
    def length(self) -> int:
        """Updates of the whole run."""
        return self.training.steps

    def build_model(self, vocab_size: int) -> "KernelGPTForCausalLM":
        """The model of this recipe with freshly initialised weights (drawn from torch's global generator).

        Raises:
            InputError: unknown variant or option, a name in `extra` that the model does not have, a head
                width that does not divide, or a training that cannot fit in memory.
        """
        from nadaraya.models import KernelGPTForCausalLM
        from nadaraya.training import memory

        layers, variant = self.model.num_hidden_layers, self.model.variant
        period = 1 if isinstance(variant, str) else len(variant)
        if self.model.extra.get("value_embeddings") == "alternate":
            period *= 2
        pattern = self._config(vocab_size, layers=min(layers, period or 1))
        with self._refusing_options():
            parameters = memory.count_parameters(pattern, layers)
        memory.check_memory(
            f"training of {parameters:,} parameters in batches of {self.training.batch_size:,} windows of "
            f"{self.data.context:,} tokens",
            memory.text_training_bytes(self, parameters, vocab_size),
            "model.hidden_size, model.num_hidden_layers, training.batch_size or data.context",
            memory.training_device(),
        )
        config = self._config(vocab_size, layers=layers)
        with self._refusing_options():
            return KernelGPTForCausalLM(config)

    def _config(self, vocab_size: int, layers: int) -> "KernelGPTConfig":
        """The configuration of the model with so many layers."""
        from nadaraya.models import KernelGPTConfig

        plain = self.model.model_dump(exclude={"preset"})
        extra, variant_options = plain.pop("extra"), plain.pop("variant_options")
        accepted = set(KernelGPTConfig.__annotations__) - {*plain, "variant_options", *_SET_ELSEWHERE}
        for name in extra:
            if name not in accepted:
                raise unknown_name("key in model.extra", name, accepted)
        heads = self.model.num_attention_heads
        if self.model.hidden_size % heads:
            accepted_width = f"a multiple of model.num_attention_heads = {heads}"
            raise must_be("recipe key model.hidden_size", accepted_width, self.model.hidden_size)
        if layers < self.model.num_hidden_layers:  # what is removed from layers that are not there
            extra = {key: extra[key] for key in extra if key not in ("pruned_heads", "intermediate_sizes")}
        with self._refusing_options():
            return KernelGPTConfig(
                vocab_size=vocab_size,
                max_position_embeddings=self.data.context,
                variant_options=variant_options or None,
                **{**plain, "num_hidden_layers": layers},
                **extra,
            )

    @contextmanager
    def _refusing_options(self) -> Iterator[None]:
        """Turn what the model raises about its options into one line; without any it is the model's fault."""
        from huggingface_hub.errors import StrictDataclassError

        try:
            yield
        except InputError:
            raise
        except (StrictDataclassError, RuntimeError, *_REFUSALS) as error:
            given = {"extra": self.model.extra, "variant_options": self.model.variant_options}
            given = {key: value for key, value in given.items() if value}
            if not given:
                raise
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"the model cannot be built with model {shown(given)}: {reason}") from error


_RECIPES: dict[str, type[Recipe] | type[ImageRecipe]] = {"text": Recipe, "image": ImageRecipe}


def read_mapping(mapping: Mapping[str, Any]) -> Recipe | ImageRecipe:
    """The recipe of a mapping, of the class that its `task` names ("text" where it names none)."""
    mapping = _named_now(mapping)
    return _class_of(mapping.get("task", "text")).from_mapping(mapping)


def _named_now(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with the names of now: a whole model without "format" was written before there was any."""
    model = mapping.get("model")
    if "format" in mapping or not isinstance(model, Mapping) or not model.keys() >= _WRITTEN_OUT:
        return dict(mapping)
    variant = renamed(model["variant"], model["variant_options"])
    return {**mapping, "format": FORMAT, "model": {**model, "variant": variant}}


def recipe_keys(task: str = "text") -> list[str]:
    """Every dotted key of a task's recipes, in the order of the file.

    >>> from nadaraya.training import recipe_keys
    >>> recipe_keys("text")[:4]
    ['task', 'name', 'seed', 'model.preset']
    """
    return _class_of(task).dotted_keys()


def recipe_help(task: str = "text") -> dict[str, tuple[Any, str]]:
    """Default and meaning of every dotted key of a task's recipes, in the order of the file.

    >>> from nadaraya.training import recipe_help
    >>> recipe_help("text")["training.steps"]
    (600, 'Updates of the whole run.')
    """
    cls = _class_of(task)
    recipe, found = cls(), {}
    for key in cls.dotted_keys():
        section, _, name = key.rpartition(".")
        part: Any = getattr(recipe, section) if section else recipe
        meaning = " ".join((type(part).model_fields[name].description or "").split())
        found[key] = (getattr(part, name), meaning)
    return found


def recipe_schema() -> dict[str, Any]:
    """The JSON schema of recipe files of both tasks, for editors that check and complete YAML by one.

    >>> from nadaraya.training import recipe_schema
    >>> sorted(recipe_schema()["$defs"]["TrainingRecipe"]["properties"])[:2]
    ['activation_checkpointing', 'batch_size']
    """
    schema = TypeAdapter(Recipe | ImageRecipe).json_schema()
    for name in ("Recipe", "ImageRecipe"):  # it is resolved when a file is read
        meaning = "Name or path, relative to this file, of the recipe whose keys this one replaces."
        schema["$defs"][name]["properties"]["extends"] = {"type": "string", "description": meaning}
        meaning = "Of a recipe that was written out: what its names mean."
        schema["$defs"][name]["properties"]["format"] = {"const": FORMAT, "description": meaning}
    return schema


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe | ImageRecipe:
    """Read a recipe and apply overrides.

    Args:
        source: name of a built-in recipe, path of a .yaml file, or a run folder, whose own recipe it is. A
            name wins over a file or folder, which is then written as a path, "./demo". The keys of a file
            with `extends: NAME or path`, relative to it, replace those of that recipe.
        overrides: `key=value` strings; keys are dotted, values are YAML.

    Returns:
        The checked recipe. One that does not give its name is called after its file, its variant or model,
        and its seed where that is not 0.

    Raises:
        InputError: no such recipe, not YAML, an unknown key, or a value that is not accepted.

    >>> from nadaraya.training import load_recipe
    >>> load_recipe("demo", ["model.variant=gpa-mul", "training.learning_rate=1e-3"]).name
    'demo-gpa-mul'
    """
    mapping = _read_source(source)
    for override in overrides:
        _override(mapping, override)
    recipe = read_mapping(mapping)
    if "name" not in mapping:
        recipe = read_mapping({**mapping, "name": _name(Path(source).stem, recipe)})
    return recipe


def _read_source(source: str | Path, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """The nested mapping of a built-in recipe, a file or a run folder, on top of what it extends."""
    from nadaraya.training.folder import RECIPE_FILE

    path, names = Path(source), built_in_recipes()
    if not means_path(source, names.__contains__):
        if source not in names:
            if path.suffix in _ENDINGS:
                raise InputError(f"no recipe file {path}")
            raise unknown_name("recipe, where it is no file,", str(source), names)
        path = Path(str(files("nadaraya.training"))) / "recipes" / f"{source}.yaml"
    elif is_folder(path):
        path /= RECIPE_FILE
        if not is_file(path):
            raise InputError(f"{source} is not a run folder: it has no {RECIPE_FILE}{_as_data(source)}")
    elif not exists(path):
        raise InputError(f"no recipe file {path}")
    elif path.suffix not in _ENDINGS:
        raise InputError(f"{source} is no recipe, whose name ends in .yaml{_as_data(source)}")
    mapping = _named_now(nested(read_yaml(path, "a recipe"), f"recipe {source}"))
    if "extends" not in mapping:
        return mapping
    base, here = mapping.pop("extends"), str(path.resolve())
    if not isinstance(base, str):
        raise must_be(f"extends in {source}", "the name or the path of a recipe", base)
    if here in below:
        raise InputError(f"recipe {source} extends itself: {' → '.join([*below, here][-5:])}")
    if len(below) > _MOST_EXTENDED:
        raise InputError(f"recipe {below[0]} extends more than {_MOST_EXTENDED} others")
    if base not in names:
        base = path.parent / base
    inherited = _read_source(base, (*below, here))
    inherited.pop("name", None)  # which names one recipe
    for key, value in mapping.items():
        section = inherited.get(key)
        inherited[key] = section | value if isinstance(section, dict) and isinstance(value, dict) else value
    return inherited


def _as_data(source: str | Path) -> str:
    """How a message goes on about a text where a recipe belongs."""
    return f": to train on a text, `nadaraya train demo data.corpus={source}`"


def _name(stem: str, recipe: Recipe | ImageRecipe) -> str:
    """File, variant and seed; where that is too long, its beginning and a digest of the whole."""
    seed = f"-seed{recipe.seed}" if recipe.seed else ""
    name = re.sub(r"[^\w.+-]", "-", f"{stem}-{recipe.label}{seed}")
    name = name if re.match(r"\w", name) else f"run{name}"
    if len(os.fsencode(name)) <= LONGEST_NAME:
        return name
    beginning = os.fsencode(name)[: LONGEST_NAME - 50].decode(errors="ignore")
    return f"{beginning}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}{seed}"


def _class_of(task: Any) -> type[Recipe] | type[ImageRecipe]:
    if not isinstance(task, str) or task not in _RECIPES:
        raise unknown_name("recipe key task", task, _RECIPES)
    return _RECIPES[task]


def _override(mapping: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        data = "data.source" if mapping.get("task") == "image" else "data.corpus"
        example = f"{data}={override}" if exists(Path(override)) else "model.variant=gpa-mul"
        raise must_be("override", f"KEY=VALUE, for example {example}", override)
    value = parse_yaml(text, f"override {shown(override)}")
    if text.count("#") > str(value).count("#"):
        raise must_be("override", f"without a YAML comment: quote text with #, {key}='\"…\"'", override)
    put(mapping, key.strip(), value)

"""Recipes: everything a run is made from, as checked models that read and write YAML.

Every key has a default; `task` says whether a recipe is one of text (the default, `Recipe`) or of images.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, model_validator

from nadaraya.data.tokenizer import SMALLEST_VOCABULARY
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.files import reading
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.schema import (
    BaseRecipe,
    BaseTraining,
    Fraction,
    OpenFraction,
    Positive,
    Section,
    parse_yaml,
)

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTForCausalLM


class ModelRecipe(Section):
    """The model: `KernelGPTConfig` says what its arguments mean.

    >>> from nadaraya.training import ModelRecipe
    >>> ModelRecipe(variant="gpa-mul").hidden_size
    128
    """

    prefix: ClassVar[str] = "model."
    hidden_size: PositiveInt = 128
    """Width of the model; a multiple of the heads."""
    num_hidden_layers: PositiveInt = 4
    """Number of blocks."""
    num_attention_heads: PositiveInt = 4
    """Heads per block."""
    variant: str | list[str] = "rope"
    """Attention variant; a list of them repeats over the blocks."""
    variant_options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the variant."""
    dropout: Fraction = 0.0
    """Of activations, in training."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Any other argument of `KernelGPTConfig`."""


class DataRecipe(Section):
    """The text and what its tokens are.

    >>> from nadaraya.training import DataRecipe
    >>> DataRecipe(corpus="dickens").context
    256
    """

    prefix: ClassVar[str] = "data."
    corpus: str = "embedded"
    """`embedded`, `dickens`, or the path of a text file or of a folder of them."""
    tokenizer: Literal["characters", "bytes", "bpe"] = "characters"
    """What a token is: a character of the text, a byte of UTF-8, or byte pairs found in the training part."""
    vocabulary: Annotated[int, Field(ge=SMALLEST_VOCABULARY)] | None = None
    """Number of tokens of `bpe` (null: 4096)."""
    context: Annotated[int, Field(ge=2)] = 256
    """Tokens in a window."""
    validation_fraction: OpenFraction = 0.1
    """The part at the end of the text that is not trained on."""
    limit: PositiveInt | None = None
    """Characters of the text that are used (null: all of it)."""

    @model_validator(mode="after")
    def _check_vocabulary(self) -> Self:
        if self.vocabulary is not None and self.tokenizer != "bpe":
            accepted = f"null where data.tokenizer is {self.tokenizer} (bpe alone has a vocabulary to choose)"
            raise must_be("recipe key data.vocabulary", accepted, self.vocabulary)
        return self

    def byte_pair_options(self) -> dict[str, int]:
        """Keywords of `nadaraya.data.train_byte_pair_tokenizer`."""
        return {} if self.vocabulary is None else {"vocabulary": self.vocabulary}


class TrainingRecipe(BaseTraining):
    """The optimisation: AdamW, linear warm-up and cosine decay.

    >>> from nadaraya.training import TrainingRecipe
    >>> TrainingRecipe(steps=50, warmup_steps=5).batch_size
    16
    """

    at_most: ClassVar[dict[str, str]] = {**BaseTraining.at_most, "warmup_steps": "steps"}
    steps: PositiveInt = 600
    """Updates of the whole run."""
    warmup_steps: NonNegativeInt = 20
    """Updates until the learning rate has risen to its highest."""
    kernel_learning_rate: Positive | None = 1e-2
    """`learning_rate` of kernels, banks, bandwidths and learned angles (null: the same); they never decay."""
    evaluate_every: PositiveInt = 50
    """Updates from one validation to the next."""
    validation_batches: PositiveInt = 8
    """Batches of windows in a validation, evenly spaced over the validation text."""
    sample_characters: NonNegativeInt = 2000
    """Tokens of the text that is generated at the end: characters, for a model of characters."""


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
            InputError: unknown variant or option, a name in `extra` that the model does not have, or a head
                width that does not divide.
        """
        from huggingface_hub.errors import StrictDataclassError

        from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

        plain = self.model.model_dump()
        extra, variant_options = plain.pop("extra"), plain.pop("variant_options")
        taken = {"self", "vocab_size", "max_position_embeddings", "variant_options", "kwargs", *plain}
        accepted = set(inspect.signature(KernelGPTConfig).parameters) - taken
        for name in extra:
            if name not in accepted:
                raise unknown_name("key in model.extra", name, accepted)
        heads = self.model.num_attention_heads
        if self.model.hidden_size % heads:
            accepted_width = f"a multiple of model.num_attention_heads = {heads}"
            raise must_be("recipe key model.hidden_size", accepted_width, self.model.hidden_size)
        try:
            config = KernelGPTConfig(
                vocab_size=vocab_size,
                max_position_embeddings=self.data.context,
                variant_options=variant_options or None,
                **plain,
                **extra,
            )
        except StrictDataclassError as error:
            raise InputError(f"the model of this recipe: {' '.join(str(error).split())}") from error
        return KernelGPTForCausalLM(config)


_RECIPES: dict[str, type[Recipe] | type[ImageRecipe]] = {"text": Recipe, "image": ImageRecipe}


def read_mapping(mapping: Mapping[str, Any]) -> Recipe | ImageRecipe:
    """The recipe of a mapping, of the class that its `task` names ("text" where it names none)."""
    return _class_of(mapping.get("task", "text")).from_mapping(mapping)


def recipe_keys(task: str = "text") -> list[str]:
    """Every dotted key of a task's recipes, in the order of the file.

    >>> from nadaraya.training import recipe_keys
    >>> recipe_keys("text")[:4]
    ['task', 'name', 'seed', 'model.hidden_size']
    """
    return _class_of(task).dotted_keys()


def recipe_schema() -> dict[str, Any]:
    """The JSON schema of recipe files of both tasks, for editors that check and complete YAML by one.

    >>> from nadaraya.training import recipe_schema
    >>> sorted(recipe_schema()["$defs"]["TrainingRecipe"]["properties"])[:2]
    ['batch_size', 'betas']
    """
    return TypeAdapter(Recipe | ImageRecipe).json_schema()


def built_in_recipes() -> list[str]:
    """Names of the recipes that come with the library.

    >>> from nadaraya.training import built_in_recipes
    >>> built_in_recipes()
    ['cifar-cpu', 'deit', 'demo', 'dickens']
    """
    folder = files("nadaraya.training") / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe | ImageRecipe:
    """Read a recipe and apply overrides.

    Args:
        source: name of a built-in recipe, or path of a YAML file.
        overrides: `key=value` strings; keys are dotted, values are YAML.

    Returns:
        The checked recipe. One that does not give its name is called after its file and its variant
        or model.

    Raises:
        InputError: no such recipe, not YAML, an unknown key, or a value that is not accepted.

    >>> from nadaraya.training import load_recipe
    >>> load_recipe("demo", ["model.variant=gpa-mul", "training.learning_rate=1e-3"]).name
    'demo-gpa-mul'
    """
    path = Path(source)
    if str(source) in built_in_recipes():
        text = (files("nadaraya.training") / "recipes" / f"{source}.yaml").read_text(encoding="utf-8")
    elif path.is_file():
        with reading(path, "a recipe"):
            text = path.read_text(encoding="utf-8")
    elif path.suffix in (".yaml", ".yml"):
        raise InputError(f"no recipe file {path}")
    else:
        raise unknown_name("recipe, where it is no file,", str(source), built_in_recipes())
    mapping = parse_yaml(text, str(source)) or {}
    if not isinstance(mapping, dict):
        raise must_be(f"recipe {source}", "keys and values", mapping)
    for override in overrides:
        _override(mapping, override)
    recipe = read_mapping(mapping)
    if "name" not in mapping:
        recipe = read_mapping({**mapping, "name": re.sub(r"[^\w.+-]", "-", f"{path.stem}-{recipe.label}")})
    return recipe


def _class_of(task: Any) -> type[Recipe] | type[ImageRecipe]:
    if not isinstance(task, str) or task not in _RECIPES:
        raise unknown_name("recipe key task", task, _RECIPES)
    return _RECIPES[task]


def _override(mapping: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise must_be("override", "KEY=VALUE, for example model.variant=gpa-mul", override)
    *sections, last = key.strip().split(".")
    for section in sections:
        if not isinstance(mapping.get(section), dict):
            mapping[section] = {}
        mapping = mapping[section]
    mapping[last] = parse_yaml(text, f"override {override!r}")

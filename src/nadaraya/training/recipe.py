"""Recipes: everything a run is made from, as checked dataclasses that read and write YAML.

A recipe is the name of a built-in one (`demo`, `dickens`, `deit`, `cifar-cpu`) or a YAML file; every key has
a default, and any of them can be overridden as `key=value` with dotted keys:
`load_recipe("demo", ["model.variant=gpa-mul"])`. Its key `task` says whether it is one of text (the default,
`Recipe`) or of images (`ImageRecipe`).
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from nadaraya.errors import InputError, unknown_name
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.sections import (
    BaseRecipe,
    Section,
    check_pieces,
    checked,
    decay_rates,
    fraction,
    natural,
    not_negative,
    one_of,
    parse_yaml,
    positive,
    positive_int,
    precisions,
)

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTForCausalLM


@dataclass(frozen=True)
class ModelRecipe(Section):
    """The model: sizes, attention variant, and any other argument of `KernelGPTConfig` under `extra`."""

    prefix: ClassVar[str] = "model."
    hidden_size: int = positive_int(128)
    num_hidden_layers: int = positive_int(4)
    num_attention_heads: int = positive_int(4)
    variant: str | list[str] = "rope"
    variant_options: dict[str, Any] = field(default_factory=dict)
    dropout: float = fraction(0.0)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataRecipe(Section):
    """The text: `embedded`, `dickens` or a path; context in tokens; limit in characters (null: all of it)."""

    prefix: ClassVar[str] = "data."
    corpus: str = "embedded"
    tokenizer: str = one_of("character", "character")
    context: int = checked(256, "an integer of at least 2", lambda value: value >= 2)
    validation_fraction: float = checked(
        0.1, "a number between 0 and 1, exclusive", lambda value: 0 < value < 1
    )
    limit: int | None = positive_int(None)


@dataclass(frozen=True)
class TrainingRecipe(Section):
    """The optimisation: AdamW, linear warm-up, cosine decay; intervals are counted in updates.

    `batch_size` is the number of windows in one update; `gradient_accumulation` is the number of equal pieces
    an update is computed in, which changes the memory it needs and not what it computes. The kernel learning
    rate is for kernel, bank, bandwidth and learned-angle parameters, which never decay. `precision` "auto" is
    bfloat16 on CUDA and float32 elsewhere.
    """

    prefix: ClassVar[str] = "training."
    steps: int = positive_int(600)
    batch_size: int = positive_int(16)
    gradient_accumulation: int = positive_int(1)
    learning_rate: float = positive(2e-3)
    min_learning_rate_fraction: float = fraction(0.0)
    kernel_learning_rate: float = positive(1e-2)
    warmup_steps: int = natural(20)
    schedule: str = one_of("cosine", "cosine")
    weight_decay: float = not_negative(0.1)
    betas: tuple[float, float] = decay_rates((0.9, 0.95))
    clip: float | None = positive(1.0)
    precision: str = precisions()
    compile: bool = False
    log_every: int = positive_int(10)
    evaluate_every: int = positive_int(50)
    validation_batches: int = positive_int(8)
    checkpoint_every: int = positive_int(200)
    sample_characters: int = natural(2000)
    tensorboard: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pieces(self.batch_size, self.gradient_accumulation)
        if self.warmup_steps > self.steps:
            raise InputError(
                f"training.warmup_steps = {self.warmup_steps} is more than training.steps = {self.steps}"
            )


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """A language model's run: task, name and seed as in every recipe, and three sections."""

    sections: ClassVar[dict[str, type[Section]]] = {
        "model": ModelRecipe,
        "data": DataRecipe,
        "training": TrainingRecipe,
    }
    task: str = one_of("text", "text")
    model: ModelRecipe = field(default_factory=ModelRecipe)
    data: DataRecipe = field(default_factory=DataRecipe)
    training: TrainingRecipe = field(default_factory=TrainingRecipe)

    @property
    def label(self) -> str:
        """The attention variant; those of a hybrid joined by "+"."""
        variant = self.model.variant
        return variant if isinstance(variant, str) else "+".join(variant)

    def build_model(self, vocab_size: int) -> "KernelGPTForCausalLM":
        """The model of this recipe with freshly initialised weights (drawn from torch's global generator).

        Raises:
            InputError: unknown variant or option, a name in `extra` that the model does not have, or a head
                width that does not divide.
        """
        from huggingface_hub.errors import StrictDataclassError

        from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

        plain = asdict(self.model)
        extra, variant_options = plain.pop("extra"), plain.pop("variant_options")
        taken = {"self", "vocab_size", "max_position_embeddings", "variant_options", "kwargs", *plain}
        accepted = set(inspect.signature(KernelGPTConfig).parameters) - taken
        for name in extra:
            if name not in accepted:
                raise unknown_name("model argument in model.extra", name, accepted)
        if self.model.hidden_size % self.model.num_attention_heads:
            raise InputError(
                f"model.hidden_size = {self.model.hidden_size} does not divide into "
                f"model.num_attention_heads = {self.model.num_attention_heads} heads of equal width"
            )
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
    """The recipe of a mapping, of the class that its `task` names ("text" where it names none).

    Raises:
        InputError: an unknown task or key, or a value that is not accepted.
    """
    task = mapping.get("task", "text")
    if not isinstance(task, str) or task not in _RECIPES:
        raise unknown_name("task", str(task), _RECIPES)
    return _RECIPES[task].from_mapping(mapping)


def recipe_keys(task: str = "text") -> list[str]:
    """Every dotted key of a task's recipes, in the order of the file."""
    if task not in _RECIPES:
        raise unknown_name("task", task, _RECIPES)
    return _RECIPES[task].dotted_keys()


def built_in_recipes() -> list[str]:
    """Names of the recipes that come with the library."""
    folder = files("nadaraya.training") / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


@overload
def load_recipe(source: Literal["demo", "dickens"], overrides: Sequence[str] = ()) -> Recipe: ...


@overload
def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe | ImageRecipe: ...


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
    """
    path = Path(source)
    if str(source) in built_in_recipes():
        text = (files("nadaraya.training") / "recipes" / f"{source}.yaml").read_text(encoding="utf-8")
    elif path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read recipe {path}: {error}") from error
    elif path.suffix in (".yaml", ".yml"):
        raise InputError(f"no recipe file {path}")
    else:
        raise unknown_name("recipe (not a file either)", str(source), built_in_recipes())
    mapping = parse_yaml(text, str(source))
    if not isinstance(mapping or {}, dict):
        raise InputError(f"recipe {source}: accepted are keys and values, not a {type(mapping).__name__}")
    mapping = mapping or {}
    for override in overrides:
        _override(mapping, override)
    recipe = read_mapping(mapping)
    if "name" not in mapping:
        recipe = read_mapping({**mapping, "name": re.sub(r"[^\w.+-]", "-", f"{path.stem}-{recipe.label}")})
    return recipe


def _override(mapping: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"override {override!r}: accepted is key=value, for example model.variant=gpa-mul")
    *sections, last = key.strip().split(".")
    for section in sections:
        if not isinstance(mapping.get(section), dict):
            mapping[section] = {}
        mapping = mapping[section]
    mapping[last] = parse_yaml(text, f"override {override!r}")

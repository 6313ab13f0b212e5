"""Study files: variants × sizes × seeds of one recipe, what is matched, and the learning rates to search."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from nadaraya.errors import InputError, check_name, must_be
from nadaraya.names import built_in_recipes
from nadaraya.plain_yaml import read_yaml
from nadaraya.study.probes import probe_names
from nadaraya.training import Recipe, load_recipe
from nadaraya.training.schema import NonNegativeInt, Positive, Section, Settings, dotted_items

_NAME = re.compile(r"\w[\w.+-]{0,59}")
# What the study itself sets in every run.
_OWN = ("task", "name", "seed", "training.learning_rate")
# What a variant cannot set for itself where something is matched.
_MATCHED = {
    "flops": ("training.steps",),
    "seconds": ("training.steps",),
    "tokens": ("training.steps", "training.batch_size", "training.batch_tokens", "data.context"),
    "parameters": (),
}
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Seeds = Annotated[list[Seed], Field(min_length=1)]
# In which the sizes of a study of horizons may differ.
_OF_HORIZONS = {
    f"training.{key}"
    for key in ("steps", "warmup_steps", "evaluate_every", "checkpoint_every", "sample_characters")
}


class Study(Section):
    """A study file, checked.

    >>> from nadaraya.study import Study
    >>> study = Study(recipe="demo", baseline="rope", variants={"rope": {}}, learning_rates=[1e-3])
    >>> study.sizes, study.seeds, study.match
    ({'only': {}}, [0, 1, 2], 'flops')
    """

    recipe: str
    """Name or path, relative to this file, of the recipe that every run starts from."""
    baseline: str
    """The variant that the others are compared with."""
    variants: Annotated[dict[str, Settings], Field(min_length=1)]
    """Recipe keys to change, by the name of the variant."""
    sizes: Annotated[dict[str, Settings], Field(min_length=1)] = Field(
        default_factory=lambda: dict[str, dict[str, Any]](only={})
    )
    """Recipe keys to change, by the name of the size, smallest first; `training.steps`: the baseline's."""
    match: Literal["flops", "parameters", "seconds", "tokens"] = "flops"
    """The quantity matched between every variant and the baseline at a size."""
    seeds: Seeds = Field(default_factory=lambda: [0, 1, 2])
    """Of the runs; the first one searches the learning rate."""
    learning_rates: Annotated[list[Positive], Field(min_length=1)]
    """Tried for each variant at each size; the best by the final validation loss is used for all seeds."""
    extend_rates: NonNegativeInt = 0
    """Further rates that are tried beyond an end of the list that comes out best."""
    search_at: list[str] | None = None
    """Sizes at which rates are searched, others take that of the one before (null: at all of them)."""
    search_also: dict[str, list[str]] = Field(default_factory=dict)
    """Variants whose rates are searched at a size, by its name, that is none of `search_at`."""
    seeds_at: dict[str, Seeds] = Field(default_factory=dict)
    """Seeds of the runs at a size, by its name, where they are not `seeds`."""
    learning_rates_at: dict[str, Annotated[list[Positive], Field(min_length=1)]] = Field(default_factory=dict)
    """Rates that are tried at a size, by its name, where they are not `learning_rates`."""
    only_at: dict[str, list[str]] = Field(default_factory=dict)
    """The variants that a size has, by its name; the baseline is one of them. Other sizes have all."""
    probes: list[str] = Field(default_factory=list)
    """Measurements of the trained models that are kept with the figures: `nadaraya.study.probes`."""
    probe_at: list[str] | None = None
    """Sizes whose runs are probed (null: the last one)."""
    source: str = ""
    """The file that it was read from, in whose folder `recipe` is looked for; default none."""

    @classmethod
    def _refusal(cls, refused: ValidationError, given: Mapping[str, Any]) -> InputError:
        return InputError(str(super()._refusal(refused, given)).replace("recipe key", "study key", 1))

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for what, own in (("variants", (*_OWN, *_MATCHED[self.match])), ("sizes", _OWN)):
            for name, keys in getattr(self, what).items():
                if not _NAME.fullmatch(name):
                    accepted = "named in up to 60 letters, digits and . _ + - (they name folders)"
                    raise must_be(f"study key {what}", accepted, name)
                for key, _ in dotted_items(keys):
                    if key in own:
                        raise must_be(f"study key {what}.{name}", "without what the study sets itself", key)
        _check_names("baseline", [self.baseline], self.variants)
        for key in ("search_at", "search_also", "probe_at", "seeds_at", "learning_rates_at", "only_at"):
            _check_names(key, getattr(self, key) or (), self.sizes)
        for key in ("only_at", "search_also"):
            for size, variants in getattr(self, key).items():
                _check_names(f"{key}.{size}", variants, self.variants)
        _check_names("probes", self.probes, probe_names())
        for key in ("seeds", "learning_rates"):
            at = {f"{key}_at.{size}": values for size, values in getattr(self, f"{key}_at").items()}
            for name, values in {key: getattr(self, key), **at}.items():
                told = {f"{value:.6g}" if key == "learning_rates" else value for value in values}
                if len(told) < len(values):
                    accepted = "a list of different numbers (rates: in six digits)"
                    raise must_be(f"study key {name}", accepted, values)
        # Every size has the baseline, and every variant a size at which its rate is searched.
        for size, variants in self.only_at.items():
            if self.baseline not in variants:
                accepted = f"a list with the baseline {self.baseline!r}"
                raise must_be(f"study key only_at.{size}", accepted, variants)
        for variant in self.variants:
            if not any(self.searches(size, variant) for size in self.sizes_of(variant)):
                accepted = f"sizes of which one at least has the variant {variant!r}"
                raise must_be("study key search_at", accepted, self.search_at)
        return self

    def recipe_of(
        self, size: str, variant: str, changes: Sequence[str] = (), more: Mapping[str, Any] | None = None
    ) -> Recipe:
        """The recipe of a variant at a size, with the first learning rate and seed.

        Args:
            size: its name.
            variant: its name.
            changes: of the recipe before those of the size and the variant, as KEY=VALUE.
            more: recipe keys to change after all others; default none.

        Raises:
            InputError: no such recipe, one on images, or a key or value that it does not take.
        """
        check_changes(changes, _OWN, "study")
        keys: dict[str, Any] = {"name": f"{size}-{variant}", "seed": self.seeds[0]}
        keys |= {"training.learning_rate": self.learning_rates[0], **(more or {})}
        parts = [*dotted_items(self.sizes[size]), *dotted_items(self.variants[variant]), *keys.items()]
        overrides = [*changes, *(f"{key}={json.dumps(value)}" for key, value in parts)]
        path = Path(self.source).parent / self.recipe
        named = self.recipe in built_in_recipes() or not (path.suffix or path.exists())
        base = self.recipe if named else path
        try:
            recipe = load_recipe(base, overrides)
        except InputError as error:
            raise InputError(f"{variant} at size {size}: {error}") from None
        if not isinstance(recipe, Recipe):
            raise must_be("study key recipe", "a recipe on text", self.recipe)
        return recipe

    def searches(self, size: str, variant: str) -> bool:
        """Return true where the learning rate of a variant is searched at a size."""
        everywhere = self.search_at is None or size in self.search_at
        return everywhere or variant in self.search_also.get(size, ())

    def seeds_of(self, size: str) -> list[int]:
        """Seeds of the runs at a size; the first one searches the learning rate there."""
        return self.seeds_at.get(size, self.seeds)

    def with_seeds(self, seeds: Sequence[int]) -> Self:
        """The study with these seeds at all sizes, after its own ones."""

        def more(own: Sequence[int]) -> list[int]:
            return [*own, *(seed for seed in seeds if seed not in own)]

        at = {size: more(own) for size, own in self.seeds_at.items()}
        return type(self)(**{**self.model_dump(), "seeds": more(self.seeds), "seeds_at": at})

    def rates_of(self, size: str) -> list[float]:
        """The learning rates that are tried where they are searched at a size, ascending."""
        return sorted(self.learning_rates_at.get(size, self.learning_rates))

    def variants_of(self, size: str) -> list[str]:
        """The variants at a size, in the order of the file."""
        return [name for name in self.variants if name in self.only_at.get(size, self.variants)]

    def sizes_of(self, variant: str) -> list[str]:
        """The sizes that have a variant, in the order of the file."""
        return [size for size in self.sizes if variant in self.variants_of(size)]

    def probes_of(self, size: str) -> list[str]:
        """Names of the probes of the runs at a size."""
        probed = list(self.sizes)[-1:] if self.probe_at is None else self.probe_at
        return self.probes if size in probed else []

    @property
    def horizons(self) -> bool:
        """True where the sizes are one model and text at several numbers of updates, which variants share."""
        kept = [
            {key: value for key, value in dotted_items(keys) if key not in _OF_HORIZONS}
            for keys in self.sizes.values()
        ]
        return self.match == "tokens" and all(keys == kept[0] for keys in kept)


def load_study(path: str | Path) -> Study:
    """Read a study file.

    Args:
        path: of the YAML file.

    Returns:
        The checked study.

    Raises:
        InputError: no such file, not YAML, an unknown key, or a value that is not accepted.

    >>> from pathlib import Path
    >>> from nadaraya.study import load_study
    >>> lines = ["recipe: demo", "baseline: rope", "variants: {rope: {}}", "learning_rates: [1e-3]"]
    >>> _ = Path("study.yaml").write_text("\\n".join(lines))
    >>> load_study("study.yaml").learning_rates
    [0.001]
    """
    return Study(**{**read_yaml(Path(path), "a study"), "source": str(path)})


def _check_names(key: str, given: Iterable[str], accepted: Collection[str]) -> None:
    for name in given:
        check_name(f"study key {key}", name, accepted)


def check_changes(changes: Sequence[str], own: Sequence[str], what: str) -> None:
    """Refuse KEY=VALUE of a key that a study or a search sets in its runs itself."""
    for change in changes:
        if change.partition("=")[0].strip() in own:
            raise must_be("KEY=VALUE", f"without what the {what} sets itself", change)

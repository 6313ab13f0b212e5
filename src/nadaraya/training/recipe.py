"""Reading recipes: built-in ones, YAML files on top of each other, run folders, and overrides.

Every key has a default; `task` says whether a recipe is one of text (the default, `Recipe`) or of images.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nadaraya.attention.suffixes import renamed
from nadaraya.errors import InputError, check_name, must_be, shown, unknown_name
from nadaraya.files import exists, file_in, is_file, is_folder, reading
from nadaraya.names import built_in_recipes, means_path
from nadaraya.plain_yaml import nested, parse_yaml, put, read_yaml
from nadaraya.training.folder import RECIPE_FILE
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.schema import FORMAT, LONGEST_NAME
from nadaraya.training.text_recipe import Recipe

_RECIPES: dict[str, type[Recipe] | type[ImageRecipe]] = {"text": Recipe, "image": ImageRecipe}
_ENDINGS = (".yaml", ".yml")
_MOST_EXTENDED = 20  # recipes on top of each other
_WRITTEN_OUT = {"variant", "variant_options", "dropout", "extra"}  # keys of a model in a whole recipe


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


def read_recipe(folder: Path) -> Recipe | ImageRecipe:
    """The recipe of a run folder; an InputError where the folder has none, or it cannot be read."""
    path = file_in(folder, RECIPE_FILE, "is not a run folder")
    with reading(path):
        if not path.read_bytes().endswith(b"\n"):  # cut off: keys that are not there would have defaults
            raise InputError(f"{path} is damaged: its end is missing")
    return read_mapping(read_yaml(path, "a recipe"))


def read_mapping(mapping: Mapping[str, Any]) -> Recipe | ImageRecipe:
    """The recipe of a mapping, of the class that its `task` names ("text" where it names none)."""
    mapping = _named_now(mapping)
    return _class_of(mapping.get("task", "text")).from_mapping(mapping)


def _named_now(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with the names of now, where its model is written out as in a run folder.

    One without "format" was written before there was any.
    """
    model = mapping.get("model")
    if not isinstance(model, Mapping) or not model.keys() >= _WRITTEN_OUT:
        return dict(mapping)
    extra = model["extra"]
    if isinstance(extra, Mapping):
        extra = {"prune_tol" if name == "negligible" else name: value for name, value in extra.items()}
    variant = model["variant"]
    if "format" not in mapping:
        variant = renamed(variant, model["variant_options"])
    return {"format": FORMAT, **mapping, "model": {**model, "variant": variant, "extra": extra}}


def recipe_help(task: str = "text") -> dict[str, tuple[Any, str]]:
    """Default and meaning of every dotted key of a task's recipes, in the order of the file."""
    cls = _class_of(task)
    recipe, found = cls(), {}
    for key in cls.dotted_keys():
        section, _, name = key.rpartition(".")
        part: Any = getattr(recipe, section) if section else recipe
        meaning = " ".join((type(part).model_fields[name].description or "").split())
        found[key] = (getattr(part, name), meaning)
    return found


def recipe_schema() -> dict[str, Any]:
    """The JSON schema of recipe files of both tasks, for editors that check and complete YAML by one."""
    schema = TypeAdapter(Recipe | ImageRecipe).json_schema()
    for name in ("Recipe", "ImageRecipe"):  # it is resolved when a file is read
        meaning = "Name or path, relative to this file, of the recipe whose keys this one replaces."
        schema["$defs"][name]["properties"]["extends"] = {"type": "string", "description": meaning}
        meaning = "Of a recipe that was written out: what its names mean."
        schema["$defs"][name]["properties"]["format"] = {"const": FORMAT, "description": meaning}
    return schema


def _class_of(task: Any) -> type[Recipe] | type[ImageRecipe]:
    check_name("recipe key task", task, _RECIPES)
    return _RECIPES[task]


def _read_source(source: str | Path, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """The nested mapping of a built-in recipe, a file or a run folder, on top of what it extends."""
    path = _path_of(source)
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
    if base not in built_in_recipes():
        base = path.parent / base
    inherited = _read_source(base, (*below, here))
    inherited.pop("name", None)  # which names one recipe
    for key, value in mapping.items():
        section = inherited.get(key)
        inherited[key] = section | value if isinstance(section, dict) and isinstance(value, dict) else value
    return inherited


def _path_of(source: str | Path) -> Path:
    """The YAML file of a recipe that is given by name, path or run folder."""
    path, names = Path(source), built_in_recipes()
    # Where a text is given in the place of a recipe.
    as_data = f": to train on a text, `nadaraya train demo data.corpus={source}`"
    if not means_path(source, names.__contains__):
        if source in names:
            return Path(str(files("nadaraya.training"))) / "recipes" / f"{source}.yaml"
        if path.suffix not in _ENDINGS:
            raise unknown_name("recipe, where it is no file,", str(source), names)
    if is_folder(path):
        if not is_file(path / RECIPE_FILE):
            raise InputError(f"{source} is not a run folder: it has no {RECIPE_FILE}{as_data}")
        return path / RECIPE_FILE
    if not exists(path):
        raise InputError(f"no recipe file {path}")
    if path.suffix not in _ENDINGS:
        raise InputError(f"{source} is no recipe, whose name ends in .yaml{as_data}")
    return path


def _name(stem: str, recipe: Recipe | ImageRecipe) -> str:
    """File, variant and seed; where that is too long, its beginning and a digest of the whole."""
    seed = f"-seed{recipe.seed}" if recipe.seed else ""
    name = re.sub(r"[^\w.+-]", "-", f"{stem}-{recipe.label}{seed}")
    name = name if re.match(r"\w", name) else f"run{name}"
    if len(os.fsencode(name)) <= LONGEST_NAME:
        return name
    beginning = os.fsencode(name)[: LONGEST_NAME - 50].decode(errors="ignore")
    return f"{beginning}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}{seed}"


def _override(mapping: dict[str, Any], override: str) -> None:
    """Set the key of a `key=value` override, whose value is YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        data = "data.source" if mapping.get("task") == "image" else "data.corpus"
        example = f"{data}={override}" if exists(Path(override)) else "model.variant=gpa-mul"
        raise must_be("override", f"KEY=VALUE, for example {example}", override)
    value = parse_yaml(text, f"override {shown(override)}")
    if text.count("#") > str(value).count("#"):
        raise must_be("override", f"without a YAML comment: quote text with #, {key}='\"…\"'", override)
    put(mapping, key.strip(), value)

"""Names that stand for something by themselves, and the one rule by which they differ from paths."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from nadaraya.errors import must_be
from nadaraya.files import exists

IMPORTED = "NADARAYA_IMPORT"  # environment variable: modules that register variants
_Named = TypeVar("_Named", bound=Callable[..., Any])
HUB = "hf:"  # how the name of a model at the hub begins
CORPORA = ("embedded", "dickens")  # that `nadaraya.data.load_corpus` knows


def built_in_recipes() -> list[str]:
    """Names of the recipes that come with the library.

    >>> from nadaraya.training import built_in_recipes
    >>> built_in_recipes()
    ['cifar-cpu', 'deit', 'demo', 'dickens', 'nano', 'recommended']
    """
    folder = files("nadaraya") / "training" / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def means_path(given: str | Path, is_name: Callable[[str], bool]) -> bool:
    """Return whether something given is a file or a folder, and not one of some names.

    A name wins over what lies in the current folder under it, unless that is written as a path, ./demo or
    demo/; a `Path` is always one.
    """
    if isinstance(given, Path) or os.sep in given:
        return True
    return not is_name(given) and exists(Path(given))


def named(registry: dict[str, Any], what: str, name: str) -> Callable[[_Named], _Named]:
    """A decorator that puts a function, a `what` in the message, under a new name in a registry.

    The same function made anew, as where a cell of a notebook runs twice, takes the place of the former.
    """

    def place(made: Any) -> tuple[str | None, ...]:
        return tuple(getattr(made, part, None) for part in ("__module__", "__qualname__"))

    def keep(made: _Named) -> _Named:
        if name in registry and place(registry[name]) != place(made):
            raise must_be(f"name of a {what}", "one that is not taken", name)
        registry[name] = made
        return made

    return keep


def import_modules(names: str) -> None:
    """Import Python modules that register what they add, also in the processes that this one starts.

    Their names are separated by commas; an InputError for one that is not in the current folder or installed.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    for name in filter(None, names.split(",")):
        try:
            import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name is None or not name.startswith(missing.name):
                raise
            raise must_be("--import", "a Python module that is here or installed", name) from None
    os.environ[IMPORTED] = names

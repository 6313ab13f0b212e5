"""Names that stand for something by themselves, and the one rule by which they differ from paths."""

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from nadaraya.files import exists

CORPORA = ("embedded", "dickens")  # that `nadaraya.data.load_corpus` knows


def built_in_recipes() -> list[str]:
    """Names of the recipes that come with the library.

    >>> from nadaraya.training import built_in_recipes
    >>> built_in_recipes()
    ['cifar-cpu', 'deit', 'demo', 'dickens', 'nano']
    """
    folder = files("nadaraya") / "training" / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def means_path(given: str | Path, is_name: Callable[[str], bool]) -> bool:
    """Whether something given is a file or a folder, and not one of some names.

    A name wins over what lies in the current folder under it, unless that is written as a path.

    Args:
        given: a name, or a path; a `Path` is always one.
        is_name: whether a text is one of the names.

    >>> from pathlib import Path
    >>> from nadaraya.names import means_path
    >>> Path("demo").mkdir()
    >>> [means_path(given, lambda text: text == "demo") for given in ("demo", "./demo", "demo/", "other")]
    [False, True, True, False]
    """
    if isinstance(given, Path) or os.sep in given:
        return True
    return not is_name(given) and exists(Path(given))

"""The check that every verb with --plot makes before its work."""

from pathlib import Path

from nadaraya.errors import InputError, must_be

SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path, force: bool) -> None:
    """Refuse a figure file of another ending, in no folder, or there already unless `force`."""
    if path.suffix.lower() not in SUFFIXES:
        raise must_be("--plot", f"a file that ends in {' or '.join(SUFFIXES)}", str(path))
    if path.exists() and not force:
        raise InputError(f"{path} exists already: choose another file, or --force to overwrite it")
    if not path.resolve().parent.is_dir():
        raise must_be("--plot", "a file in a folder that exists", str(path))

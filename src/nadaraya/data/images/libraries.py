"""Checks that the libraries of the `vision` extra are there, before the package imports them."""

from importlib.util import find_spec

from nadaraya.errors import InputError

for _library in ("PIL", "torchvision", "timm"):
    if find_spec(_library) is None:
        raise InputError(f'images need {_library}, which is not installed: pip install "nadaraya[vision]"')

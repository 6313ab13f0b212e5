"""Every public name shows an example in its docstring, and the examples are true."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

from nadaraya import variants

PACKAGES = [
    "nadaraya",
    "nadaraya.attention.variants",
    "nadaraya.kernels",
    "nadaraya.regression",
    "nadaraya.models",
    "nadaraya.models.vit",
    "nadaraya.data",
    "nadaraya.data.images",
    "nadaraya.training",
    "nadaraya.evaluation",
    "nadaraya.evaluation.core",
    "nadaraya.interpret",
    "nadaraya.report",
    "nadaraya.study",
    "nadaraya.reproduce",
]
NAMES = [
    f"{package}.{name}"
    for package in PACKAGES
    for name in importlib.import_module(package).__all__
    if name not in ("__version__", "variants")
]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(variants, "_VARIANTS", dict(variants._VARIANTS))  # some examples register their own
    package, _, last = name.rpartition(".")
    item = getattr(importlib.import_module(package), last)
    if not (inspect.isclass(item) or inspect.isroutine(item)):
        pytest.skip("a constant")
    examples = [test for test in doctest.DocTestFinder().find(item, name, globs={}) if test.examples]
    assert examples, f"{name} has no example in its docstring"
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in examples:
        runner.run(test)
    assert runner.failures == 0

"""Every public name shows an example in its docstring, and the examples are true."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import nadaraya
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
PUBLIC = {
    (getattr(item, "__module__", ""), getattr(item, "__name__", ""))
    for package, _, last in (name.rpartition(".") for name in NAMES)
    for item in [getattr(importlib.import_module(package), last)]
}
SOURCE = Path(nadaraya.__file__).parent
MODULES = {
    ".".join(("nadaraya", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(variants, "_VARIANTS", dict(variants._VARIANTS))  # some examples register their own


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("in_empty_folder")
def test_the_example_of_a_public_name_runs(name: str) -> None:
    package, _, last = name.rpartition(".")
    item = getattr(importlib.import_module(package), last)
    if not (inspect.isclass(item) or inspect.isroutine(item)):
        pytest.skip("a constant")
    examples = [test for test in doctest.DocTestFinder().find(item, name, globs={}) if test.examples]
    assert examples, f"{name} has no example in its docstring"
    assert_true(examples)


OTHERS = [
    (module, node.name)
    for module, path in MODULES.items()
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef | ast.FunctionDef) and ">>>" in ast.unparse(node)
    if (module, node.name) not in PUBLIC
]


@pytest.mark.parametrize(("module", "name"), OTHERS)
@pytest.mark.usefixtures("in_empty_folder")
def test_the_example_of_any_other_name_runs(module: str, name: str) -> None:
    item = getattr(importlib.import_module(module), name)
    assert_true(doctest.DocTestFinder().find(item, name, globs={}))


def assert_true(examples: list[doctest.DocTest]) -> None:
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in examples:
        runner.run(test)
    assert runner.failures == 0


def test_a_summary_is_a_verb_or_a_noun_phrase() -> None:
    """None asks What, Who, Whether or How: plain statements of what something is or returns."""
    asking = []
    for path in sorted(Path(nadaraya.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                summary = ast.get_docstring(node) or ""
                if re.match(r"(What|Who|Whether|How|Where|Which|When)\b", summary):
                    asking.append(f"{path.name}: {summary.splitlines()[0]}")
    assert not asking

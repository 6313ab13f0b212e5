"""The house: no circle of imports, small files, few public names."""

import ast
import importlib
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "nadaraya").rglob("*.py")
}
LAYERS = [
    {"errors"},
    {"files", "device", "modes", "kernels", "compiled"},
    {"names"},
    {"plain_yaml", "attention"},
    {"stored"},
    {"models", "data", "regression", "checking"},
    {"evaluation"},
    {"training"},
    {"interpret"},
    {"report", "pruning"},
    {"study"},
    {"reproduce"},
    {"cli"},
]
MOST_LINES_OF_A_FILE = 400
MOST_PUBLIC_NAMES = 155


def imported(path: Path) -> Iterator[str]:
    """Modules of the library that a file imports anywhere, for types alone excepted."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else str(node.module) for name in inner)
        nodes += ast.iter_child_nodes(node)


GRAPH = {name: {*imported(path)} - {name} for name, path in MODULES.items()}


def assert_no_circle(graph: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_no_module_imports_itself_by_others() -> None:
    assert_no_circle(GRAPH)


def test_packages_import_what_lies_below_them_alone() -> None:
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    upward = [
        f"{name} imports {other}"
        for name, others in GRAPH.items()
        for other in others
        if name.count(".") and other.count(".")
        if (part := name.split(".")[1]) != (below := other.split(".")[1]) and level[part] <= level[below]
    ]
    assert not upward


def test_files_are_small() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name for name, count in lines.items() if count > MOST_LINES_OF_A_FILE} == set()


def test_public_names_are_few() -> None:
    """Of all modules that list theirs; timm's registry adds the names of its models to another."""
    listing = [name for name, path in MODULES.items() if "\n__all__ = " in path.read_text(encoding="utf-8")]
    public = {
        id(getattr(module, name))
        for module in map(importlib.import_module, listing)
        for name in module.__all__
    }
    assert len(public) <= MOST_PUBLIC_NAMES


def test_modules_load_where_there_is_no_unix() -> None:
    absent = {"curses", "fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
    loaded = {
        (module, alias.name)
        for module, path in MODULES.items()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert {name for name in loaded if name[1] in absent} == set()

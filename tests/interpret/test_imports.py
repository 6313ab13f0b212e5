"""Looking inside needs no training: runs come as arguments, for their types alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import nadaraya.evaluation
import nadaraya.interpret
import nadaraya.training

PACKAGES = {
    name: Path(getattr(nadaraya, name).__file__).parent for name in ("interpret", "evaluation", "training")
}


def imported(node: ast.AST) -> Iterator[str]:
    """Modules that a file imports anywhere but under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom):
            yield child.module or ""
        elif isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        yield from imported(child)


@pytest.mark.parametrize(
    ("package", "above"),
    [
        ("interpret", ("training", "pruning", "report", "study")),
        ("training", ("interpret", "pruning", "report")),
        ("evaluation", ("interpret", "pruning", "report")),
    ],
)
def test_nothing_imports_what_builds_on_it(package: str, above: tuple[str, ...]) -> None:
    for path in PACKAGES[package].glob("*.py"):
        found = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
        wrong = [name for name in found if name.startswith(tuple(f"nadaraya.{other}" for other in above))]
        assert wrong == [], path.name

"""Pages made from the code: every verb and every key is on them, with what it accepts."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("sphinx", reason="the pages are made by the docs extra")
pytest.importorskip("typer")

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated", DOCS / "_ext" / "generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_commands_has_every_verb_and_an_example_of_it(generated: ModuleType) -> None:
    page = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    verbs = [" ".join(words) for words in generated.verbs()]
    assert re.findall(r"^```\{verb\} (.*)$", page, re.MULTILINE) == verbs
    assert [verb for verb in verbs if f"\nnadaraya {verb}" not in page] == []


def test_a_verb_is_described_by_its_help(generated: ModuleType) -> None:
    text = "\n".join(generated.describe_verb(["lags"]))
    assert text.startswith("Count the distances between newlines")
    assert "nadaraya lags [OPTIONS] {text}" in text
    assert "| `--max-lag <int>` | " in text
    assert "default: 256" in text


@pytest.mark.parametrize("task", ["text", "image"])
def test_every_key_of_a_recipe_has_a_row_with_its_meaning(generated: ModuleType, task: str) -> None:
    from nadaraya.training import ImageRecipe, Recipe
    from nadaraya.training.recipe import recipe_help

    rows = list(generated.describe_recipe(Recipe if task == "text" else ImageRecipe))
    described = [row.split("|") for row in rows if row.startswith("| `")]
    assert [cells[1].strip(" `") for cells in described] == list(recipe_help(task))
    assert all(cell.strip() for cells in described for cell in cells[2:5]), described


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"type": "integer", "exclusiveMinimum": 0}, "integer > 0"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "number ≥ 0 and < 1"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text or null"),
        ({"type": "array", "items": {"type": "string"}}, "list of text"),
        ({"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}]}, "[number, number]"),
        ({"enum": ["auto", "float32"], "type": "string"}, "`auto`, `float32`"),
        ({"const": "text", "type": "string"}, "`text`"),
    ],
)
def test_fields_are_said_in_words(generated: ModuleType, field: dict[str, Any], words: str) -> None:
    assert generated.accepted(field) == words


def test_recipe_classes_are_shown_with_the_types_of_their_keys_alone() -> None:
    # In a process of its own: the annotations stay as the site shows them.
    program = (
        f"import sys; sys.path.insert(0, {str(DOCS / '_ext')!r})\n"
        "import inspect, plain_types\n"
        "from nadaraya.training.image_recipe import ImageDataRecipe\n"
        "from nadaraya.training.text_recipe import DataRecipe, Recipe\n"
        "plain_types.setup(None)\n"
        "print(*map(inspect.signature, (Recipe, DataRecipe, ImageDataRecipe)))\n"
        "print(DataRecipe.__annotations__, DataRecipe(limit=4).limit)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "context: int = 256" in shown
    assert not re.search(r"Annotated|FieldInfo|Validator|Undefined|factory|0x", shown)
    assert shown.endswith(" 4\n")

"""Pages made from the code itself, so that they cannot go stale: the verbs' help and the recipes' keys.

The directives `{verb} bench vit` and `{recipe} nadaraya.training.Recipe` stand where the tables shall appear.
"""

import json
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
YAML_TYPES = {"object": "mapping", "array": "list", "string": "text", "boolean": "true or false"}


class Verb(SphinxDirective):
    """What `nadaraya VERB --help` says: purpose, usage, arguments and options."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(describe_verb(self.arguments[0].split())))


class Recipe(SphinxDirective):
    """The keys of a recipe class, one table per section: type or accepted values, default, meaning."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        recipe = getattr(import_module(module), name)
        return self.parse_text_to_nodes("\n".join(describe_recipe(recipe)))


def describe_verb(words: list[str]) -> Iterator[str]:
    """Markdown of one verb, named by its words, e.g. ["bench", "vit"]."""
    command, context = find_verb(words)
    usage = " ".join(["nadaraya", *words, *command.collect_usage_pieces(context)])
    yield from [command.help, "", "```text", usage, "```", ""]
    records = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    if records:
        yield from ["| argument or option | meaning |", "|---|---|"]
    for names, text in records:
        yield f"| {_code(names)} | {_cell(text)} |"


def find_verb(words: list[str]) -> tuple[Any, Any]:
    """The command that some words name, and its context; no words name `nadaraya` itself."""
    from typer.main import get_command

    from nadaraya.cli.app import app

    command: Any = get_command(app)
    context = command.make_context("nadaraya", [], resilient_parsing=True)
    for word in words:
        command = command.get_command(context, word)
        context = command.make_context(word, [], parent=context, resilient_parsing=True)
    return command, context


def verbs(words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every verb, those of groups opened: ("train",), ("bench", "vit"), …"""
    command, context = find_verb(list(words))
    if not hasattr(command, "list_commands"):
        yield words
        return
    for name in command.list_commands(context):
        yield from verbs((*words, name))


def describe_recipe(recipe: Any) -> Iterator[str]:
    """Markdown of a recipe class (pydantic): the keys at its top, then one table per section."""
    schema, defaults = recipe.model_json_schema(), recipe().model_dump(mode="json")
    sections = {
        key: schema["$defs"][field["$ref"].rpartition("/")[2]]
        for key, field in schema["properties"].items()
        if "$ref" in field
    }
    top = {key: field for key, field in schema["properties"].items() if key not in sections}
    yield from _table("", top, defaults)
    for name, section in sections.items():
        purpose = section.get("description", "").split("\n\n")[0]
        yield from ["", f"`{name}`: {' '.join(purpose.split())}", ""]
        yield from _table(f"{name}.", section["properties"], defaults[name])


def _table(prefix: str, fields: dict[str, Any], defaults: dict[str, Any]) -> Iterator[str]:
    yield from ["| key | accepted | default | meaning |", "|---|---|---|---|"]
    for key, field in fields.items():
        default = _code(json.dumps(defaults[key], ensure_ascii=False))
        meaning = _cell(field.get("description", ""))
        yield f"| {_code(prefix + key)} | {_cell(accepted(field))} | {default} | {meaning} |"


def accepted(field: dict[str, Any]) -> str:
    """What a field of a JSON schema takes, in words: "number > 0 or null"."""
    if "anyOf" in field:
        return " or ".join(accepted(option) for option in field["anyOf"])
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if "prefixItems" in field:
        return f"[{', '.join(accepted(item) for item in field['prefixItems'])}]"
    kind = field.get("type", "any value")
    words = [YAML_TYPES.get(kind, kind)]
    if kind == "array" and "items" in field:
        words.append(f"of {accepted(field['items'])}")
    bounds = [f"{sign} {field[bound]:g}" for bound, sign in BOUNDS.items() if bound in field]
    return " ".join([*words, " and ".join(bounds)]).strip()


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"


def _cell(text: str) -> str:
    """Text as one cell: on one line, options as code, no character that Markdown would take for its own."""
    text = re.sub(r"([\\|*<\[])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![`\w-])--[a-z][\w-]*", r"`\g<0>`", text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("verb", Verb)
    app.add_directive("recipe", Recipe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

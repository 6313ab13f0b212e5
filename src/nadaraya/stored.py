"""Files that others could have written or that were damaged, read with a schema; errors are one line.

A kind of file is a type: a `Stored` with its fields, or a list or mapping of such. Whatever does not have
that form is refused with the path, the place in the file and what belongs there.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from nadaraya.errors import InputError, shown
from nadaraya.files import reading
from nadaraya.plain_yaml import read_yaml

Kind = TypeVar("Kind")

_LARGEST = 2**28  # bytes of a JSON document
# Pydantic's words are those of Python; a file is YAML or JSON.
_WORDS = {
    "bool_type": "true or false",
    "dict_type": "keys and values",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "missing": "there",
    "model_type": "a section of keys",
    "string_type": "text",
    "too_short": "longer",
}


class Stored(BaseModel):
    """A part of a stored file: its fields are checked strictly; fields that it does not know are left out."""

    model_config = ConfigDict(frozen=True, strict=True, use_attribute_docstrings=True)


def read_stored(path: Path, kind: type[Kind], what: str) -> Kind:
    """The checked content of a file; an InputError where it cannot be read or has another form.

    Args:
        path: a .yaml file, read as plain YAML, or one of JSON.
        kind: its schema: a `Stored`, or a type made of them such as `dict[str, Row]`.
        what: what the file is read as, for the message, such as "the manifest of shards".
    """
    if path.suffix in (".yaml", ".yml"):
        return checked(read_yaml(path, what), kind, f"{path} cannot be read as {what}")
    with reading(path, what):
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST // 2**20} MiB")
        return checked(path.read_bytes(), kind, f"{path} cannot be read as {what}")


def read_lines(path: Path, kind: type[Kind], what: str) -> Iterator[tuple[str, Kind]]:
    """Every complete line of a file of JSON lines, as it is and as its checked content; see `read_stored`.

    A last line that was cut off while being written is left out; nothing comes of a file that is not there.
    """
    if not path.is_file():
        return
    with reading(path, what):
        lines = path.read_text(encoding="utf-8").split("\n")  # the last piece is empty or torn
    for number, line in enumerate(lines[:-1], start=1):
        yield line, checked(line.encode(), kind, f"{path}, line {number}, cannot be read as {what}")


def checked(content: Any, kind: type[Kind], refusal: str) -> Kind:
    """Content, JSON as bytes or plain values, with the form that a schema says.

    Of another form it is refused by an InputError that begins with `refusal`.
    """
    try:
        # By way of JSON: a list is then a tuple where the schema has one.
        text = content if isinstance(content, bytes) else json.dumps(content)
        found = TypeAdapter(kind).validate_json(text)
        # Pydantic orders the keys of a dictionary as its schema; what is written again keeps its own order.
        return json.loads(text) if is_typeddict(kind) else found
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise InputError(f"{refusal}: {first['msg']}") from None
        place = ".".join(map(str, first["loc"])) or "its content"
        if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
            raise InputError(f"{refusal}: {place}: {cause}") from None
        given = "" if first["type"] == "missing" else f", got {shown(first['input'])}"
        raise InputError(f"{refusal}: {place} must be {accepted(first)}{given}") from None


def accepted(error: Mapping[str, Any]) -> str:
    """Text of what one of pydantic's errors asks for, as it reads after "must be"."""
    message: str = error["msg"]
    words = message.removeprefix("Value error, ").removeprefix("Input should be ")
    words = re.sub(r"\d{13,}", lambda digits: f"{float(digits[0]):g}", words)
    return _WORDS.get(error["type"], words.replace("greater than or equal to", "at least"))

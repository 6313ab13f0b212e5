"""YAML as recipes use it: plain values, each key once, no tags and no references; errors are one line."""

import re
from pathlib import Path
from typing import Any

import yaml

from nadaraya.errors import InputError, must_be
from nadaraya.files import reading

_DEEPEST = 20  # levels of lists and mappings in a document
_DIGITS = 1000  # Python shows numbers of up to 4300
_LARGEST = 2**20  # bytes of a document
_ABSENT = object()
_OWN_TAG = "tag:yaml.org,2002:"


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """The keys and values of a YAML file; an InputError where it is no file of plain YAML with such."""
    with reading(path, what):
        size = path.stat().st_size
        if path.is_dir():
            raise must_be(str(path), "a file", "a folder")
        if not path.is_file() or size > _LARGEST:
            raise must_be(str(path), f"a file of at most {_LARGEST // 2**20} MiB", f"{size:,} bytes")
        text = path.read_text(encoding="utf-8")
    read = parse_yaml(text, str(path))
    if not isinstance(read, dict | None):
        # Its content is not shown: what is no such document may be a file of any kind.
        raise InputError(f"{path} cannot be read as {what}: it must be keys and values")
    return {str(key): value for key, value in (read or {}).items()}


def parse_yaml(text: str, where: str) -> Any:
    """Plain YAML values only: text, numbers, true and false, null, lists and mappings; nothing is run.

    An empty document is None. An InputError, which calls it `where`, if it is no YAML, has a tag, a reference
    or a key twice, or is nested too deep.
    """
    try:
        return yaml.load(text, _PlainLoader)  # a SafeLoader that accepts less
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join((getattr(error, "problem", None) or str(error).splitlines()[0]).split())
        raise InputError(f"{where}{line}: not plain YAML: {problem}") from error


def nested(read: dict[str, Any], where: str) -> dict[str, Any]:
    """A mapping whose keys such as `model.variant` are put into their sections; none may be there twice."""
    mapping = {key: value for key, value in read.items() if "." not in key}
    for key in read.keys() - mapping.keys():
        section: Any = mapping
        for part in key.split("."):
            section = section.get(part, _ABSENT) if isinstance(section, dict) else _ABSENT
        if section is not _ABSENT:
            raise InputError(f"{where} has the key {key} twice, with a dot and in its section")
        put(mapping, key, read[key])
    return mapping


def put(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key; sections that are not there, or are no mappings, are made."""
    *sections, last = key.split(".")
    if len(sections) > _DEEPEST:
        raise must_be("recipe key", f"at most {_DEEPEST} names with dots between them", key)
    for section in sections:
        if not isinstance(mapping.get(section), dict):
            mapping[section] = {}
        mapping = mapping[section]
    mapping[last] = value


class _PlainLoader(yaml.SafeLoader):
    """Dates stay text, and what few readers of a recipe would understand is refused."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (the base class declares it so)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_OWN_TAG}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        problem = None
        if isinstance(event, yaml.AliasEvent):
            problem = f"it refers to *{event.anchor}: write the value out"
        elif getattr(event, "tag", None) is not None:
            problem = f"it has the tag {event.tag.replace(_OWN_TAG, '!!')}: quote the text, or leave it out"
        elif self._depth >= _DEEPEST:
            problem = f"it is nested deeper than {_DEEPEST} levels"
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"the key {key.value!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep=deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int | str:
        if re.match(r"[-+]?0_*[0-7]|.*:", node.value):  # YAML 1.1 reads 010 as 8, and 1:30 as 90
            return str(node.value)
        if len(node.value) > _DIGITS:
            problem = f"a number has more than {_DIGITS} digits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return int(self.construct_yaml_int(node))


_PlainLoader.add_constructor(f"{_OWN_TAG}int", _PlainLoader.construct_integer)

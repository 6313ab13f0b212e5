"""Docstrings as they are read in a terminal: bars and stars are characters, indented lines are formulas.

The sources write |r| and (*batch, L) where reStructuredText would want escapes; this puts them in, a
heading above the first `>>>` of a docstring, and links to what stands under "See Also:".
"""

import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

_SPAN = re.compile(r"(`+[^`]+`+)")
_NAME = re.compile(r"`[A-Za-z_][\w.]*`")
_SEVERAL = re.compile(r"    \w+(, \w+)+:")
_LETTER = re.compile(r"(?<=: )([A-Za-z]\.)")
_SECTION = re.compile(
    r"(Args|Arguments|Attributes|Returns|Yields|Raises|Example|Examples|Note|Notes|See Also):"
)
_RELATIVE = re.compile(r"    ([A-Za-z][\w.]*): ")


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrites the lines of one docstring, before napoleon reads its sections."""
    lines[:] = list(_quoted(lines))


def _quoted(lines: list[str]) -> Iterator[str]:
    in_section = in_block = in_example = has_example = in_relatives = False
    previous = ""
    for line in lines:
        in_example = bool(line) and (in_example or line.startswith(">>>"))
        if in_example:
            if not has_example:
                yield from [".. rubric:: Example", ""]
            has_example, in_section, in_block = True, False, False
            yield line
            continue
        indented = line.startswith("    ")
        if line and not indented:
            in_section, in_block = _SECTION.fullmatch(line) is not None, False
            in_relatives = line == "See Also:"
        if in_relatives and (relative := _RELATIVE.match(line)):
            yield f"    * `{relative[1]}`: {_escaped(line[relative.end() :])}"
            continue
        if indented and not in_section and not in_block and not previous.strip():
            in_block = True
            yield "::"
            yield ""
        if in_section and (names := _SEVERAL.match(line)):
            # One entry for several names; with blanks all but the last would be read as its type.
            line = "    " + names[0].replace(" ", "") + line[names.end() :]
        if in_block or not line:
            yield line
        elif line.endswith("::"):
            yield _escaped(line[:-1])
        else:
            yield _escaped(line)
        previous = line


def _escaped(line: str) -> str:
    parts = _SPAN.split(line)
    return "".join(_literal(part) if i % 2 else _escaped_text(part) for i, part in enumerate(parts))


def _escaped_text(text: str) -> str:
    # "num_heads: H." would begin an enumeration.
    return _LETTER.sub(r"\\\1", re.sub(r"([|*]|_\b)", r"\\\1", text))


def _literal(span: str) -> str:
    return span if span.startswith("``") or _NAME.fullmatch(span) else f"`{span}`"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

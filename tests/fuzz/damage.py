"""Ways in which a stored file can be damaged, or written by somebody else."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

OTHERS: tuple[Any, ...] = (
    None, True, -1, 0, 2.5, 10**30, 1e308, float("nan"), float("inf"), "", "x", "../..", "\ud800", [], [1],
    {}, {"a": 1}, [[[]]],
)  # fmt: skip
CONTENTS = (
    b"", b"\0" * 99, b"null", b"3", b"[]", b"{}", b'"text"', b"[" * 100_000, b'{"a":' * 50_000,
    b"\xff\xfe\xfa", b"\xff\xfe{\0}\0", b"{a: &x [1], b: *x}\n", b"&a [*a]\n", b"9" * 5000,
    b"root:x:0:0:secret\n", b"{" + b'"a":1,' * 9 + b'"a":2}', b"!!python/object/apply:os.getcwd []\n",
    b"NaN", b"[1, 2",
)  # fmt: skip


def replace_content(path: Path, draw: random.Random) -> None:
    """All of it by something else."""
    path.write_bytes(draw.choice(CONTENTS))


def replace_value(path: Path, draw: random.Random) -> None:
    """One value of JSON, or of one of its lines, by one of another kind."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.suffix == ".jsonl" else [path.read_text()]
    place = draw.randrange(max(1, len(lines) - 1))
    content = json.loads(lines[place])
    parts = [(content, key) for key in _keys(content)]
    for holder, key in parts:
        parts += [(holder[key], inner) for inner in _keys(holder[key])]
    if parts:
        holder, key = draw.choice(parts)
        holder[key] = draw.choice(OTHERS)
    lines[place] = json.dumps(content)
    path.write_text("\n".join(lines), encoding="utf-8")


def remove_value(path: Path, draw: random.Random) -> None:
    """One key of JSON, or of one of its sections."""
    content = json.loads(path.read_text(encoding="utf-8").split("\n")[0] if path.suffix == ".jsonl" else
                         path.read_text(encoding="utf-8"))  # fmt: skip
    parts = [(content, key) for key in _keys(content)]
    for holder, key in parts:
        parts += [(holder[key], inner) for inner in _keys(holder[key])]
    if parts:
        holder, key = draw.choice(parts)
        del holder[key]
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def cut(path: Path, draw: random.Random) -> None:
    """Its end is missing."""
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data))])


def flip(path: Path, draw: random.Random) -> None:
    """One bit of it."""
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def _keys(value: Any) -> list[Any]:
    return (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )


DAMAGE: tuple[Callable[[Path, random.Random], None], ...] = (
    replace_content, replace_value, replace_value, remove_value, cut, flip,
)  # fmt: skip

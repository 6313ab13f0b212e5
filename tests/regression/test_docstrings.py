"""Every public class of the regression package and every method of it has an example and names relatives."""

import inspect
import re
from collections.abc import Iterator

import pytest

from nadaraya import regression


def documented() -> Iterator[tuple[str, str]]:
    """Names and docstrings, those of inherited methods where they are defined in this library."""
    for name in regression.__all__:
        item = getattr(regression, name)
        yield name, inspect.getdoc(item) or ""
        for method, value in inspect.getmembers(item, inspect.isroutine) if inspect.isclass(item) else ():
            inner = inspect.unwrap(getattr(value, "__func__", value))
            if not method.startswith("_") and getattr(inner, "__module__", "").startswith("nadaraya."):
                yield f"{name}.{method}", inspect.getdoc(inner) or ""


DOCUMENTED = dict(documented())


@pytest.mark.parametrize("name", DOCUMENTED)
def test_an_example_and_relatives(name: str) -> None:
    assert ">>>" in DOCUMENTED[name]
    assert "See Also:" in DOCUMENTED[name]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_relatives_exist(name: str) -> None:
    section = re.search(r"See Also:\n((?:    .*\n?)+)", DOCUMENTED[name])
    for relative in re.findall(r"^    ([A-Za-z][\w.]*): ", section[1], re.MULTILINE) if section else ():
        owner, _, method = relative.partition(".")
        if owner in ("sklearn", "nadaraya"):
            continue
        assert hasattr(regression, owner), relative
        assert not method or hasattr(getattr(regression, owner), method), relative

"""Recipe classes with the types of their keys alone; their bounds are in the tables of keys."""

import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

from sphinx.application import Sphinx


def plain_types(section: Any) -> None:
    """Take what pydantic checks out of the annotations of a class, its subclasses and their signatures."""
    for each in [*_below(section)]:
        hints, signature = get_type_hints(each), inspect.signature(each)
        each.__annotations__ = {name: hints[name] for name in each.__annotations__}
        each.__signature__ = signature.replace(
            parameters=[
                parameter.replace(
                    annotation=hints.get(name, parameter.annotation),
                    default=... if repr(parameter.default) == "<factory>" else parameter.default,
                )
                for name, parameter in signature.parameters.items()
            ]
        )


def _below(section: Any) -> Iterator[Any]:
    yield section
    for each in section.__subclasses__():
        yield from _below(each)


def setup(app: Sphinx) -> dict[str, bool]:
    import nadaraya.training  # noqa: F401 (defines the recipes)
    from nadaraya.training.schema import Section

    plain_types(Section)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

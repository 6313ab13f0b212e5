"""KEY=VALUE on the command line."""

from collections.abc import Sequence
from typing import Any

from nadaraya.errors import must_be


def key_values(given: Sequence[str], where: str) -> dict[str, Any]:
    """The settings of a repeated option.

    Args:
        given: "key=value" texts; values are plain YAML: 3, 0.1, true, GGGA, {grid_kernel: bank}.
        where: the option's name, for messages.

    Returns:
        Values by key; a key that is given twice has its last value.

    Raises:
        InputError: a text without "=", or a value that is not plain YAML.
    """
    from nadaraya.training.schema import parse_yaml

    values = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise must_be(where, "KEY=VALUE", text)
        values[key] = parse_yaml(value, f"{where} {key}")
    return values

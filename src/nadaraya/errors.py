"""The one exception for bad input, and how its message reads: the argument, what it must be, what it was."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class InputError(ValueError):
    """What the caller gave cannot be used; the message is one line that names it and what is accepted.

    The command line prints the message alone and exits with status 2. Any other exception is a fault of
    the library and keeps its traceback.

    >>> from nadaraya import variants
    >>> variants.get("gpa-mull")
    Traceback (most recent call last):
    nadaraya.errors.InputError: variant must be one of ... got 'gpa-mull': did you mean 'gpa-mul'?
    """


def must_be(name: str, accepted: str, given: Any) -> InputError:
    """An InputError for an argument whose value is not accepted.

    Args:
        name: of the argument, as the caller wrote it.
        accepted: what it must be, as it reads after "must be".
        given: the value.

    Returns:
        The exception, to be raised by the caller.

    >>> must_be("eps", "a number of at least 0", -1.0)
    InputError('eps must be a number of at least 0, got -1.0')
    """
    return InputError(f"{name} must be {accepted}, got {shown(given)}")


def unknown_name(name: str, given: Any, accepted: Iterable[str]) -> InputError:
    """An InputError for a name that does not exist, with the nearest one that does.

    Args:
        name: of the argument, or what the name stands for ("variant", "recipe key").
        given: the name as it was given.
        accepted: every valid name.

    Returns:
        The exception, to be raised by the caller.

    >>> unknown_name("empty", "neares", ["nearest", "nan", "raise"])
    InputError("empty must be one of 'nan', 'nearest', 'raise', got 'neares': did you mean 'nearest'?")
    """
    names = sorted(accepted)
    nearest = get_close_matches(str(given), names, n=1)
    hint = f": did you mean {nearest[0]!r}?" if nearest else ""
    return InputError(f"{name} must be one of {', '.join(map(repr, names))}, got {shown(given)}{hint}")


def shown(value: Any) -> str:
    """A value on one line of at most 200 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:198]} …"

"""The one exception for bad input, and how its message reads: the argument, what it must be, what it was."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

_LONGEST = 200  # characters of a value in a message


class InputError(ValueError):
    """Unusable input; the message is one line that names it and what is accepted.

    The command line prints the message alone and exits with status 2. Any other exception is a fault of
    the library and keeps its traceback.

    Args:
        message: what is wrong; characters that end a line or that a terminal obeys, as the name of a file may
            have, are shown as escapes.

    >>> from nadaraya import variants
    >>> variants.get("gpa-mull")
    Traceback (most recent call last):
    nadaraya.errors.InputError: variant must be one of ... got 'gpa-mull': did you mean 'gpa-mul'? (...)
    """

    def __init__(self, message: str) -> None:
        super().__init__(message if message.isprintable() else "".join(map(_printable, message)))


def must_be(name: str, accepted: str, given: Any) -> InputError:
    """An InputError, for the caller to raise, for an argument whose value is not accepted.

    >>> from nadaraya.errors import must_be
    >>> must_be("eps", "a number of at least 0", -1.0)
    InputError('eps must be a number of at least 0, got -1.0')
    """
    return InputError(f"{name} must be {accepted}, got {shown(given)}")


def check_at_least(least: int, **numbers: int | None) -> None:
    """Refuse numbers, by the names of the arguments, that are smaller than `least`; None stands for none."""
    for name, given in numbers.items():
        if given is not None and given < least:
            raise must_be(name, f"{least} or more", given)


def unknown_name(
    name: str, given: Any, accepted: Iterable[str], *, meant: str | None = None, listed_by: str = ""
) -> InputError:
    """An InputError, for the caller to raise, for a name that does not exist; it has the nearest that does.

    Args:
        name: of the argument, or what the name stands for ("variant", "recipe key").
        given: the name as it was given.
        accepted: every valid name; of many the nearest few are listed.
        meant: the name that was meant, where that is known; default the one nearest in spelling.
        listed_by: the command that lists them all; default none.

    >>> from nadaraya.errors import unknown_name
    >>> unknown_name("empty", "neares", ["nearest", "nan", "raise"])
    InputError("empty must be one of 'nan', 'nearest', 'raise', got 'neares': did you mean 'nearest'?")
    """
    names = sorted(accepted)
    spelt = given[:_LONGEST] if isinstance(given, str) else shown(given)
    nearest = [meant] if meant else get_close_matches(spelt, names, n=1)
    hint = f": did you mean {nearest[0]!r}?" if nearest else ""
    listed = ", ".join(map(repr, names))
    if len(listed) > 2 * _LONGEST:
        # Those nearest in spelling, however far: a line has room for a few.
        few = dict.fromkeys([*nearest, *get_close_matches(spelt, names, n=5, cutoff=0.0)])
        how = f": {listed_by} lists them" if listed_by else ""
        listed = f"{', '.join(map(repr, list(few)[:5]))}, … ({len(names)} in all{how})"
    return InputError(f"{name} must be one of {listed}, got {shown(given)}{hint}")


def check_name(name: str, given: Any, accepted: Iterable[str]) -> None:
    """Refuse a name that does not exist.

    Args:
        name, given, accepted: as `unknown_name` takes them.

    Raises:
        InputError: it is none of those accepted.
    """
    if given not in (names := tuple(accepted)):
        raise unknown_name(name, given, names)


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def shown(value: Any) -> str:
    """A value on one line of at most 200 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of thousands of digits, lists in lists in lists …, what has no text at all
        return f"a value too long to show ({type(value).__name__})"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"

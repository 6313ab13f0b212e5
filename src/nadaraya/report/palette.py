"""Colours and dashes: one fixed style per variant, so that it looks the same in every figure and report.

The hues are those of Okabe and Ito (2008), which the common forms of colour blindness keep apart, darkened
until they stand out on white, with a lighter twin for dark pages. Related variants differ by dash. Heads have
colours of their own, each apart from those of all variants: a line of a head is never taken for a run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: name -> (on white, on dark). The values on white are what figures are drawn with; all are distinct.
COLOURS: dict[str, tuple[str, str]] = {
    "ink": ("#1c2128", "#e4e7eb"),
    "muted": ("#5f6873", "#9aa3ae"),
    "rule": ("#d5d9de", "#3a414a"),
    "slate": ("#59636f", "#a9b2bd"),
    "blue": ("#0068a8", "#5cb3ee"),
    "vermillion": ("#c94f00", "#ff8f4d"),
    "green": ("#00805d", "#3fc79d"),
    "purple": ("#a14585", "#e08fc6"),
    "sky": ("#2b8fc4", "#8fd0f5"),
    "ochre": ("#97690a", "#e3b64a"),
    "wine": ("#7c2348", "#d9769b"),
    "head0": ("#c800c8", "#e650ff"),
    "head1": ("#479c00", "#6fdc00"),
    "head2": ("#0000f0", "#5f6dff"),
    "head3": ("#ff0087", "#ff3c5a"),
    "head4": ("#b48787", "#8f7070"),
    "head5": ("#7800ff", "#a035ff"),
    "head6": ("#a578ff", "#e6dcff"),
    "head7": ("#5a2d96", "#bb3aa0"),
}

SOLID: tuple[float, ...] = ()
DASHED = (5.0, 2.0)
DOTTED = (1.5, 1.5)
_DASHES = (
    SOLID, DASHED, DOTTED, (6.0, 2.0, 1.5, 2.0), (10.0, 2.0), (6.0, 1.5, 1.5, 1.5, 1.5, 1.5), (2.5, 1.0)
)  # fmt: skip

_VARIANTS = {
    "rope": ("slate", 0),
    "learned-rope": ("slate", 1),
    "softmax": ("slate", 2),
    "nope": ("slate", 3),
    "rope-norm": ("blue", 1),
    "gpa-rope": ("blue", 0),
    "gpa-hybrid": ("blue", 2),
    "gpa-rope-paper": ("blue", 3),
    "gpa": ("sky", 0),
    "gpa-paper": ("sky", 3),
    "gpa-mul": ("vermillion", 0),
    "gpa-mul-loo": ("vermillion", 1),
    "mixed-bank": ("vermillion", 2),
    "kernel": ("vermillion", 3),
    "gpa-spread": ("sky", 2),
    "decay": ("green", 0),
    "alibi": ("green", 1),
    "t5": ("ochre", 0),
    "kerple": ("ochre", 1),
    "inkling": ("ochre", 2),
    "fire": ("ochre", 3),
    "fox": ("sky", 1),
    "gka": ("purple", 1),
    "gka-loo": ("purple", 0),
    "kv-shared": ("purple", 2),
    "qkv-shared": ("purple", 3),
    "gka-loo-bank": ("wine", 0),
    "vlt": ("wine", 1),
    "gka-bank": ("wine", 2),
}
# Other names that say what becomes of the token itself: the colour of the variant, with this dash.
_OWN = {"loo": 4, "xsa": 5, "drop": 6}
_OTHERS = ("wine", "ochre", "sky", "purple", "green", "blue", "vermillion")


@dataclass(frozen=True)
class Style:
    """How one line is drawn: a name of COLOURS, and a dash pattern in line widths (empty: solid)."""

    colour: str
    dash: tuple[float, ...] = SOLID

    @property
    def hex(self) -> str:
        """The colour on white, as `#rrggbb`."""
        return COLOURS[self.colour][0]

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of matplotlib's `plot`."""
        return {"color": self.hex, "linestyle": (0, self.dash) if self.dash else "solid"}


def variant_styles(variants: Iterable[str]) -> list[Style]:
    """One style for each variant, in order; a variant given again keeps its colour and gets the next dash.

    A name with `-loo`, `-drop` or `-xsa` has the colour of the variant without it, and so has any other that
    goes on after the name of a variant (`rope-gate`). Hybrids and variants of your own get a colour by their
    position, of those that no variant here has; when these run out they come again with the next dash.
    """
    variants = list(variants)
    solid = {known[0] for name in variants if (known := _VARIANTS.get(name)) and known[1] == 0}
    free = [colour for colour in _OTHERS if colour not in solid] or _OTHERS
    fixed = [Style(known[0], _DASHES[known[1]]) for name in variants if (known := _known(name))]
    seen: dict[str, int] = {}
    others: list[str] = []
    styles: list[Style] = []
    for variant in variants:
        known = _known(variant) or _by_start(variant, [*fixed, *styles])
        if known is None and variant not in others:
            others.append(variant)
        rounds, place = divmod(others.index(variant), len(free)) if known is None else (0, 0)
        colour, dash = known or (free[place], rounds)
        styles.append(Style(colour, _DASHES[(dash + seen.get(variant, 0)) % len(_DASHES)]))
        seen[variant] = seen.get(variant, 0) + 1
    return styles


def _known(variant: str) -> tuple[str, int] | None:
    """The colour and dash that a name has in any company."""
    if variant in _VARIANTS:
        return _VARIANTS[variant]
    words = variant.split("-")
    base = _VARIANTS.get("-".join(word for word in words if word not in _OWN))
    own = [_OWN[word] for word in words if word in _OWN]
    return (base[0], own[0]) if base and own else None


def _by_start(variant: str, taken: list[Style]) -> tuple[str, int] | None:
    """The colour of the longest variant that a name begins with, and the first of its dashes that is free."""
    starts = [name for name in _VARIANTS if variant.startswith(f"{name}-")]
    if not starts:
        return None
    colour, dash = _VARIANTS[max(starts, key=len)]
    used = {style.dash for style in taken if style.colour == colour}
    free = [place for place in range(len(_DASHES)) if place != dash and _DASHES[place] not in used]
    return colour, free[0] if free else dash


def head_style(head: int) -> Style:
    """The style of the line of a head, counted from 0: eight colours, then the same ones dashed."""
    return Style(f"head{head % 8}", _DASHES[head // 8 % len(_DASHES)])

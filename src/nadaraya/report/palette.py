"""Colours and dashes: one fixed style per variant, so that it looks the same in every figure and report.

The hues are those of Okabe and Ito (2008), which the common forms of colour blindness keep apart, darkened
until they stand out on white, with a lighter twin for dark pages. Related variants differ by dash. Heads have
colours of their own, each apart from those of all variants: a line of a head is never taken for a run.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

# "colours": on white and on dark pages; "variants": the name of a colour, and the number of a dash;
# "charts", "maps": matplotlib's parameters, colours by name, of charts and what maps have otherwise.
_PALETTE = json.loads((files("nadaraya.report") / "palette.json").read_text("utf-8"))
#: name -> (on white, on dark). The values on white are what figures are drawn with; all are distinct.
COLOURS: dict[str, tuple[str, str]] = {
    name: (on_white, on_dark) for name, (on_white, on_dark) in _PALETTE["colours"].items()
}

#: matplotlib's parameters by what is drawn
STYLES: dict[str, Any] = {
    style: {key: COLOURS[value][0] if value in COLOURS else value for key, value in _PALETTE[style].items()}
    for style in ("charts", "maps")
}

SOLID: tuple[float, ...] = ()
DASHED = (5.0, 2.0)
DOTTED = (1.5, 1.5)
_DASHES = (
    SOLID, DASHED, DOTTED, (6.0, 2.0, 1.5, 2.0), (10.0, 2.0), (6.0, 1.5, 1.5, 1.5, 1.5, 1.5), (2.5, 1.0),
    (1.5, 4.0), (8.0, 1.5, 3.0, 1.5)
)  # fmt: skip

_VARIANTS: dict[str, tuple[str, int]] = {
    name: (colour, dash) for name, (colour, dash) in _PALETTE["variants"].items()
}
# Other names that say what becomes of the token itself: the colour of the variant, with this dash.
_OWN = {"loo": 4, "xsa": 5, "drop": 6}
_OTHERS = ("wine", "ochre", "sky", "purple", "green", "blue", "vermillion")


@dataclass(frozen=True)
class Style:
    """Style of a line: a name of COLOURS, and a dash pattern in line widths (empty: solid)."""

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

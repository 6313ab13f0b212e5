"""Colours can be told apart, are seen on their background, and stay with their variant."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import ArrayLike

from nadaraya.attention import variants
from nadaraya.report.palette import COLOURS, Style, head_style, variant_styles

LINES = [name for name in COLOURS if name != "rule"]


def luminance(colour: str) -> float:
    """Relative luminance of sRGB as the web's accessibility guidelines define it."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("name", LINES)
def test_lines_stand_out_on_both_pages(name: str) -> None:
    on_white, on_dark = COLOURS[name]
    assert contrast(on_white, "#ffffff") >= 3
    assert contrast(on_dark, "#14171b") >= 3


@pytest.mark.parametrize("name", ["ink", "muted"])
def test_text_can_be_read_on_both_pages(name: str) -> None:
    on_white, on_dark = COLOURS[name]
    assert contrast(on_white, "#ffffff") >= 4.5
    assert contrast(on_dark, "#14171b") >= 4.5


def test_every_colour_is_its_own() -> None:
    for one, other in combinations(COLOURS.values(), 2):
        assert one[0] != other[0]


def test_a_variant_looks_the_same_in_any_company() -> None:
    alone = variant_styles(["gpa-mul"])[0]
    assert variant_styles(["rope", "gka / rope", "gpa-mul"])[2] == alone


def test_different_variants_and_repeated_ones_differ() -> None:
    names = [*variants.names(), *variants.hybrids()]
    assert len(set(variant_styles(names))) == len(names)
    assert (
        len(set(variant_styles([*names, "rope-xsa", "gpa-mul-xsa", "fox-loo", "rope-drop"])))
        == len(names) + 4
    )
    assert len(set(variant_styles(["gpa-mul"] * 4))) == 4


def test_names_that_leave_the_token_out_have_the_colour_of_their_variant() -> None:
    for name, base in (
        ("rope-xsa", "rope"),
        ("rope-drop", "rope"),
        ("fox-loo", "fox"),
        ("gka-bank-loo", "gka-bank"),
    ):
        (plain,), (own,) = variant_styles([base]), variant_styles([name])
        assert own.colour == plain.colour
        assert own.dash != plain.dash
    assert variant_styles(["my-xsa", "rope-xsa"])[1] == variant_styles(["rope-xsa"])[0]


def test_heads_differ() -> None:
    assert len({head_style(head) for head in range(16)}) == 16
    assert isinstance(head_style(0), Style)


# What people without the cones for red (protanopia) or green (deuteranopia) see of linear RGB: Machado,
# Oliveira and Fernandes (2009), severity 1.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopia": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9690]],
}


def oklab(colour: str, seen: ArrayLike = BLINDNESS["none"]) -> np.ndarray:
    """Lightness and two opponent colours, in which distances are those that people see (Ottosson 2020)."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    linear = (seen @ np.array(linear)).clip(0, 1)
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]) @ linear
    opponents = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return opponents @ np.cbrt(cones)


@pytest.mark.parametrize("page", [0, 1], ids=["white", "dark"])
@pytest.mark.parametrize("seen", BLINDNESS)
def test_heads_differ_for_everybody(page: int, seen: str) -> None:
    for one, other in combinations(range(8), 2):
        shades = [COLOURS[head_style(head).colour][page] for head in (one, other)]
        apart = np.subtract(*(oklab(shade, BLINDNESS[seen]) for shade in shades))
        assert np.linalg.norm(apart) >= (0.2 if other < 4 else 0.12), (one, other)


@pytest.mark.parametrize("page", [0, 1], ids=["white", "dark"])
def test_a_head_is_never_taken_for_a_run(page: int) -> None:
    heads = [name for name in LINES if name.startswith("head")]
    runs = [name for name in LINES if name not in (*heads, "ink", "muted")]
    for head in heads:
        for run in runs:
            apart = oklab(COLOURS[head][page]) - oklab(COLOURS[run][page])
            assert np.linalg.norm(apart) >= 0.1, (head, run)


def test_names_of_ones_own_have_colours_that_no_variant_beside_them_has() -> None:
    names = ["mine", "gka-loo-bank", "gpa", "yours"]
    assert len({style.colour for style in variant_styles(names)}) == len(names)


def test_a_name_that_goes_on_after_a_variant_has_its_colour_and_a_dash_of_its_own() -> None:
    names = ["rope", "rope-gate", "rope-conv", "gka-bank", "gka-bank-gate", "gka-gate"]
    styles = variant_styles(names)
    assert len(set(styles)) == len(names)
    assert len({style.colour for style in styles[:3]}) == 1
    assert styles[4].colour == styles[3].colour != styles[5].colour

"""The page of variants: every row makes the layer of its name; suffixes and options are complete."""

import re
from typing import Any

import pytest
import torch
from shown import ROOT, blocks

from nadaraya import KernelSelfAttention, variants
from nadaraya.attention.suffixes import _ADDED

PAGE = ROOT / "docs" / "guides" / "variants.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w-]+)` \| (.+) \| (.+) \| (?:`(.+)`|–) \|$", re.MULTILINE)
# In layers of the page, which says so, that are not causal.
BOTH_WAYS = ("nystromformer", "linformer", "skyformer", "gka-nystrom")
FORMS = {
    row[1]: f"layer = KernelSelfAttention(128, 4, causal={row[1] not in BOTH_WAYS}, {row[4] or ''})"
    for row in ROW.finditer(TEXT)
}


@pytest.fixture(autouse=True)
def not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page registers is gone after each test."""
    monkeypatch.setattr(variants, "_VARIANTS", dict(variants._VARIANTS))


@pytest.fixture
def page() -> dict[str, Any]:
    """The names that the page's Python leaves."""
    names: dict[str, Any] = {}
    for code in blocks(PAGE):
        exec(compile(code, str(PAGE), "exec"), names)
    return names


def random_layer(make: str, names: dict[str, Any]) -> KernelSelfAttention:
    """The layer that code makes from a seed, with parameters that start at 0 moved away from there."""
    torch.manual_seed(0)
    exec(make, names)
    layer: KernelSelfAttention = names["layer"]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return layer


def test_every_variant_has_one_row() -> None:
    assert sorted(row[1] for row in ROW.finditer(TEXT)) == sorted(variants.names())


def test_the_page_has_every_suffix_with_its_argument() -> None:
    table = TEXT.split("\n## Suffixes\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(-\w+)` \| `([^`]+)` \|", table, flags=re.MULTILINE))
    written = {
        f"-{suffix}": f"{added.argument}={getattr(added.value, '__name__', repr(added.value))}"
        for suffix, added in _ADDED.items()
    }
    assert {suffix: argument.replace('"', "'") for suffix, argument in rows.items()} == written


def test_the_page_has_every_option() -> None:
    table = TEXT.split("\n## Options\n")[1].split("\n## ")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    shown = re.findall(r"`(\w+)`", " ".join(first_cells))
    assert len(shown) == len(set(shown))
    assert set(shown) == {option for name in variants.names() for option in variants.options(name)}


def test_hybrids_are_written_out() -> None:
    text = TEXT.split("\n## Hybrids\n")[1]
    assert re.findall(r"\*\*`([\w-]+)`\*\*", text) == variants.hybrids()
    for name in variants.hybrids():
        for layer, _ in variants.by_layer(name, 4):
            assert f"`{layer}`" in text


def test_a_variant_of_ones_own_has_its_option_and_its_suffix(page: dict[str, Any]) -> None:
    assert variants.options("matern") == {"length": 16.0}
    assert variants.describe("matern") == "Multiplied by a Matérn kernel of the lag."
    torch.testing.assert_close(page["layer"].position.length, torch.tensor(8.0))
    assert isinstance(page["layer"].output_gate, page["OutputGate"])


@pytest.mark.parametrize("name", variants.names())
def test_what_is_written_out_is_the_variant(name: str, page: dict[str, Any]) -> None:
    written = random_layer(FORMS[name], page)
    causal = name not in BOTH_WAYS
    make = f"layer = KernelSelfAttention(128, 4, causal={causal}, **variants.get({name!r}))"
    named = random_layer(make, page)
    assert [(key, value.shape) for key, value in written.named_parameters()] == [
        (key, value.shape) for key, value in named.named_parameters()
    ]
    for key, value in named.state_dict().items():
        torch.testing.assert_close(written.state_dict()[key], value, rtol=0, atol=0, msg=key)
    x = torch.randn(2, 24, 128)
    torch.testing.assert_close(written.eval()(x), named.eval()(x), rtol=0, atol=0)
    assert (written.exclude_self, written.own_value) == (named.exclude_self, named.own_value)
    assert written.eps == named.eps

"""The page that writes every variant out: each block makes the layer of its name."""

import re
from typing import Any

import pytest
import torch
from shown import ROOT, blocks

from nadaraya import KernelSelfAttention, variants

PAGE = ROOT / "docs" / "guides" / "variants.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = [section.split("\n## ")[0].partition("`\n") for section in TEXT.split("\n### `")[1:]]
FORMS = {name: text.split("```")[1].removeprefix("python\n") for name, _, text in SECTIONS}


def random_layer(make: str, names: dict[str, Any]) -> KernelSelfAttention:
    """The layer that code makes from a seed, with parameters that start at 0 moved away from there."""
    torch.manual_seed(0)
    exec(make, names)
    layer: KernelSelfAttention = names["layer"]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return layer


def test_the_page_writes_every_variant_out_once() -> None:
    assert sorted(name for name, _, _ in SECTIONS) == sorted(variants.names())
    assert len(blocks(PAGE)) == len(FORMS) + 1  # the imports


def test_the_page_says_what_the_suffixes_mean() -> None:
    opening = TEXT.split("\n## ")[0]
    assert variants.get("rope-loo")["exclude_self"]
    assert "`-loo` is leave-one-out regression, `exclude_self=True`" in opening
    for suffix in ("drop", "xsa"):
        assert f"`-{suffix}`" in opening
        assert f'own_value="{variants.get(f"rope-{suffix}")["own_value"]}"' in opening
    for suffix, argument in (("sink", "sink"), ("gate", "output_gate")):
        part = variants.get(f"rope-{suffix}")[argument]
        assert f"`-{suffix}` is `{argument}={part.__name__}`" in opening


def test_hybrids_are_written_out() -> None:
    text = TEXT.split("\n## Hybrids\n")[1]
    assert re.findall(r"^\*\*`([\w-]+)`\*\*", text, flags=re.MULTILINE) == variants.hybrids()
    for name in variants.hybrids():
        for layer, _ in variants.by_layer(name, 4):
            assert f"`{layer}`" in text


@pytest.mark.parametrize("name", variants.names())
def test_what_is_written_out_is_the_variant(name: str) -> None:
    names: dict[str, Any] = {"variants": variants}
    exec(blocks(PAGE)[0], names)
    written = random_layer(FORMS[name], names)
    named = random_layer(f"layer = KernelSelfAttention(128, 4, causal=True, **variants.get({name!r}))", names)
    assert [(key, value.shape) for key, value in written.named_parameters()] == [
        (key, value.shape) for key, value in named.named_parameters()
    ]
    for key, value in named.state_dict().items():
        torch.testing.assert_close(written.state_dict()[key], value, rtol=0, atol=0, msg=key)
    x = torch.randn(2, 24, 128)
    torch.testing.assert_close(written(x), named(x), rtol=0, atol=0)
    assert (written.exclude_self, written.own_value) == (named.exclude_self, named.own_value)
    assert written.eps == named.eps

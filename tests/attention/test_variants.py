"""The table of variants is a contract: names, composition, and options that are refused when misspelt."""

import pytest

from nadaraya import InputError, KernelSelfAttention, variants
from nadaraya.attention.content import DotProduct, GaussianContent
from nadaraya.attention.mixing import FIRE, MixedBank, MixedProfiles
from nadaraya.kernels import KERPLE, ALiBi, Exp, KernelBank, T5Buckets

CONTRACT = {
    "softmax": (DotProduct, "qkvo", None, None),
    "nope": (DotProduct, "qkvo", None, None),
    "rope": (DotProduct, "qkvo", "static", None),
    "rope-norm": (DotProduct, "qkvo", "static", None),
    "learned-rope": (DotProduct, "qkvo", "learned", None),
    "decay": (DotProduct, "qkvo", None, KernelBank),
    "gpa-mul": (DotProduct, "qkvo", None, KernelBank),
    "mixed-bank": (DotProduct, "qkvo", None, MixedBank),
    "gpa": (DotProduct, "qkvo", None, Exp),
    "gpa-rope": (DotProduct, "qkvo", "static", Exp),
    "gpa-mul-loo": (DotProduct, "qkvo", None, KernelBank),
    "gka": (GaussianContent, "o", "static", None),
    "gka-bank": (GaussianContent, "o", None, KernelBank),
    "gka-loo": (GaussianContent, "o", "static", None),
    "gka-loo-bank": (GaussianContent, "o", None, KernelBank),
    "vlt": (DotProduct, "qko", None, None),
    "kv-shared": (DotProduct, "q(kv)o", "static", None),
    "qkv-shared": (DotProduct, "(qkv)o", "static", None),
    "fox": (DotProduct, "qkvo", None, None),
    "inkling": (DotProduct, "qkvo", None, MixedProfiles),
    "fire": (DotProduct, "qkvo", None, FIRE),
    "alibi": (DotProduct, "qkvo", None, ALiBi),
    "t5": (DotProduct, "qkvo", None, T5Buckets),
    "kerple": (DotProduct, "qkvo", None, KERPLE),
}


def test_names() -> None:
    assert set(variants.names()) == set(CONTRACT)


@pytest.mark.parametrize("name", CONTRACT)
def test_contract(name: str) -> None:
    layer = KernelSelfAttention(64, 4, causal=True, **variants.get(name))
    content, projections, rotary, position = CONTRACT[name]
    assert type(layer.content) is content
    assert layer.projections.form == projections
    assert (layer.rotary is not None, layer.rotary is not None and layer.rotary.learned) == (
        rotary is not None,
        rotary == "learned",
    )
    assert layer.position is None if position is None else type(layer.position) is position
    assert (layer.gate is not None) == (name == "fox")
    assert layer.projections.head_norm == (name in ("rope-norm", "inkling") or name.startswith("gka"))
    assert layer.own == ("exclude" if "loo" in name else "keep")
    assert not {"causal", "window"} & set(variants.get(name))
    assert variants.describe(name)


@pytest.mark.parametrize("name", ["rope-xsa", "gka-xsa-bank", "fox-xsa"])
def test_any_variant_projects_the_token_out_by_its_name(name: str) -> None:
    base = name.replace("-xsa", "")
    options = variants.get(name)
    assert options.pop("own") == "project-out"
    assert options.keys() == variants.get(base).keys()
    assert variants.options(name) == variants.options(base)
    assert f"`{base}`" in variants.describe(name)


def test_gaussian_attention_can_do_without_one_of_its_parts() -> None:
    whole, projected, dot = (
        KernelSelfAttention(16, 2, causal=True, **variants.get("gka-loo-bank", **options))
        for options in ({}, {"projections": "qkvo"}, {"content": "dot", "head_norm": False})
    )
    assert [layer.projections.form for layer in (whole, projected, dot)] == ["o", "qkvo", "o"]
    assert [type(layer.content) for layer in (projected, dot)] == [GaussianContent, DotProduct]
    assert all(layer.own == "exclude" and layer.position is not None for layer in (projected, dot))
    with pytest.raises(InputError, match="content must be one of 'dot', 'gaussian', got 'dott'"):
        variants.get("gka", content="dott")


def test_options_reach_the_bank() -> None:
    layer = KernelSelfAttention(64, 4, **variants.get("gpa-rope", num_terms=5, init="geometric"))
    assert layer.position.kernel.sigma.shape == (4, 5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpa-mull", {}, "variant must be one of .* got 'gpa-mull': did you mean 'gpa-mul'"),
        ("gpa", {"num_term": 3}, "did you mean 'num_terms'"),
        ("gpa-loo-xsa", {}, "variant must be one of .* got 'gpa-loo-xsa'"),
        ("loo", {}, "variant must be one of .* got 'loo'"),
        ("gka", {"rotary": "statik"}, "rotary must be .* did you mean 'static'"),
        ("gka", {"values": "feature"}, "values must be .* did you mean 'features'"),
        ("alibi", {"slope": 1}, "options of variant 'alibi' must be none, got 'slope'"),
    ],
)
def test_misspelt_names_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        variants.get(name, **options)

"""The table of variants is a contract: names, composition, and options that are refused when misspelt."""

import pytest

from nadaraya import InputError, KernelSelfAttention, variants

CONTRACT = {
    "softmax": ("dot", "qkvo", None, None),
    "rope": ("dot", "qkvo", "static", None),
    "learned-rope": ("dot", "qkvo", "learned", None),
    "decay": ("dot", "qkvo", None, "multiply"),
    "gpa-mul": ("dot", "qkvo", None, "multiply"),
    "gpa": ("dot", "qkvo", None, "add"),
    "gpa-rope": ("dot", "qkvo", "static", "add"),
    "gpa-mul-loo": ("dot", "qkvo", None, "multiply"),
    "gka": ("gaussian", "o", "static", None),
    "gka-loo": ("gaussian", "o", "static", None),
    "gka-loo-bank": ("gaussian", "o", None, "multiply"),
    "vlt": ("dot", "qko", None, None),
    "alibi": ("dot", "qkvo", None, "multiply"),
    "t5": ("dot", "qkvo", None, "multiply"),
    "kerple": ("dot", "qkvo", None, "multiply"),
}


def test_names() -> None:
    assert set(variants.names()) == set(CONTRACT)


@pytest.mark.parametrize("name", CONTRACT)
def test_contract(name: str) -> None:
    layer = KernelSelfAttention(64, 4, causal=True, **variants.get(name))
    similarity, projections, rotary, compose = CONTRACT[name]
    assert (layer.similarity, layer.projections) == (similarity, projections)
    assert (layer.rotary is not None, layer.rotary is not None and layer.rotary.learned) == (
        rotary is not None,
        rotary == "learned",
    )
    assert (layer.lag_kernel is not None) == (compose is not None)
    if compose is not None:
        assert layer.compose == compose
    assert layer.exclude_self == name.split("-bank")[0].endswith("-loo")
    assert not {"causal", "window"} & set(variants.get(name))
    assert variants.describe(name)


def test_options_reach_the_bank() -> None:
    layer = KernelSelfAttention(64, 4, **variants.get("gpa-rope", num_terms=5, init="geometric"))
    assert layer.lag_kernel.sigma.shape == (4, 5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpa-mull", {}, "variant must be one of .* got 'gpa-mull': did you mean 'gpa-mul'"),
        ("gpa", {"num_term": 3}, "did you mean 'num_terms'"),
        ("alibi", {"slope": 1}, "options of variant 'alibi' must be none, got 'slope'"),
    ],
)
def test_misspelt_names_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        variants.get(name, **options)

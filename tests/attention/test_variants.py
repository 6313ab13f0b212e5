"""The table of variants is a contract: names, composition, and options that are refused when misspelt."""

from typing import Any

import pytest
import torch
from causal_variants import NEVER_CAUSAL, causal_options

from nadaraya import InputError, KernelSelfAttention, variants
from nadaraya.attention.content import DotProduct, GaussianContent
from nadaraya.attention.features import Features
from nadaraya.attention.gates import OutputGate, Sink
from nadaraya.attention.landmarks import NystromContent, SkyformerContent
from nadaraya.attention.low_rank import LinformerContent, NystromformerContent
from nadaraya.attention.mixing import FIRE, MixedBank, MixedProfiles
from nadaraya.kernels import (
    KERPLE,
    ALiBi,
    ComposedKernel,
    Epanechnikov,
    Exp,
    FreeTable,
    GeneralizedGaussian,
    KernelBank,
    T5Buckets,
)

CONTRACT = {
    "softmax": (DotProduct, "qkvo", None, None),
    "nope": (DotProduct, "qkvo", None, None),
    "rope": (DotProduct, "qkvo", "static", None),
    "rope-norm": (DotProduct, "qkvo", "static", None),
    "learned-rope": (DotProduct, "qkvo", "learned", None),
    "decay": (DotProduct, "qkvo", None, KernelBank),
    "gpa-mul": (DotProduct, "qkvo", None, KernelBank),
    "gpa-spread": (DotProduct, "qkvo", None, KernelBank),
    "mixed-bank": (DotProduct, "qkvo", None, MixedBank),
    "kernel": (DotProduct, "qkvo", None, ComposedKernel),
    "gpa": (DotProduct, "qkvo", None, Exp),
    "gpa-rope": (DotProduct, "qkvo", "static", Exp),
    "gpa-paper": (DotProduct, "qkvo", None, Exp),
    "gpa-rope-paper": (DotProduct, "qkvo", "static", Exp),
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
    "linear": (Features, "qkvo", None, None),
    "linear-bank": (Features, "qkvo", None, KernelBank),
    "performer": (Features, "qkvo", None, None),
    "kernelized-rpe": (Features, "qkvo", None, FreeTable),
    "nystromformer": (NystromformerContent, "qkvo", None, None),
    "linformer": (LinformerContent, "qkvo", None, None),
    "skyformer": (SkyformerContent, "qkvo", None, None),
    "gka-nystrom": (NystromContent, "o", None, None),
    "gka-features": (Features, "o", None, None),
    "gka-nearest": (GaussianContent, "o", "static", None),
    "krause": (GaussianContent, "qkvo", None, None),
    "non-local": (DotProduct, "qkvo", None, None),
    "local-linear": (DotProduct, "qkvo", "static", None),
    "parallax": (DotProduct, "qkvo", "static", None),
    "bam": (DotProduct, "qkvo", None, GeneralizedGaussian),
}


def test_names() -> None:
    assert set(variants.names()) == set(CONTRACT)


@pytest.mark.parametrize("name", CONTRACT)
def test_contract(name: str) -> None:
    options = variants.get(name, **causal_options(name))
    layer = KernelSelfAttention(64, 4, causal=name not in NEVER_CAUSAL, **options)
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
    assert layer.exclude_self == ("loo" in name or name == "gpa-spread")
    assert (layer.output_gate is not None) == (name == "gpa-spread")
    assert {"causal", "window"} & set(options) == ({"window"} if name == "krause" else set())
    assert (layer.nearest is not None) == (name in ("gka-nearest", "krause"))
    assert (layer.degree, layer.probe is not None) == (int(name == "local-linear"), name == "parallax")
    assert variants.describe(name)


@pytest.mark.parametrize(
    ("name", "base", "argument", "value"),
    [
        ("rope-xsa", "rope", "own_value", "project-out"),
        ("gka-xsa-bank", "gka-bank", "own_value", "project-out"),
        ("fox-loo", "fox", "exclude_self", True),
        ("gpa-mul-drop", "gpa-mul", "own_value", "drop"),
    ],
)
def test_the_name_of_any_variant_can_say_what_becomes_of_the_token_itself(
    name: str, base: str, argument: str, value: Any
) -> None:
    options = variants.get(name)
    assert options.pop(argument) == value
    assert options.keys() == variants.get(base).keys()
    assert variants.options(name) == variants.options(base)
    assert f"`{base}`" in variants.describe(name)


def test_the_name_of_any_variant_can_give_it_a_sink_and_gates() -> None:
    layer = KernelSelfAttention(16, 2, causal=True, **variants.get("gpa-mul-loo-sink-gate", num_terms=3))
    assert (type(layer.sink), type(layer.output_gate), layer.exclude_self) == (Sink, OutputGate, True)
    assert layer.position.sigma.shape == (2, 3)
    described = variants.describe("gpa-gate-loo")
    assert described == (
        "`gpa`; gates on the output of each channel; leave-one-out regression, no token sees itself."
    )


@pytest.mark.parametrize("name", ["gpa", "gpa-rope"])
def test_added_banks_start_flat_and_as_published_by_a_name_of_their_own(name: str) -> None:
    published = f"{name}-paper"
    for each, at_zero in ((name, 1.0), (published, 64.0)):
        layer = KernelSelfAttention(16, 2, causal=True, **variants.get(each))
        torch.testing.assert_close(layer.position.kernel(0.0), torch.full((2,), at_zero))
    assert variants.options(name) | {"init": "paper"} == variants.options(published)


def test_a_hybrid_has_variants_by_layer_and_ends_with_the_last() -> None:
    made = variants.by_layer("gpa-hybrid", 9)
    assert [layer for layer, (name, _) in enumerate(made) if name == "gpa-rope"] == [0, 4, 8]
    assert {name for name, _ in made} == {"gpa-mul-loo", "gpa-rope"}
    last = KernelSelfAttention(16, 2, causal=True, **made[-1][1])
    torch.testing.assert_close(last.position.kernel(0.0), torch.ones(2))  # G(0) = 1
    given = variants.by_layer("gpa-hybrid", 4, {"num_terms": 3, "rotary_base": 500.0})
    first, *_, last = (KernelSelfAttention(16, 2, causal=True, **options) for _, options in given)
    assert (first.exclude_self, first.position.sigma.shape, first.rotary) == (True, (2, 3), None)
    assert (last.exclude_self, last.position.kernel.sigma.shape) == (False, (2, 3))
    assert variants.options("gpa-hybrid")["init"] == "unit"
    assert "gpa-mul-loo" in variants.describe("gpa-hybrid")
    with pytest.raises(InputError, match="variant of a layer must be no hybrid"):
        variants.get("gpa-hybrid")
    with pytest.raises(InputError, match="did you mean 'gpa-hybrid'"):
        variants.by_layer("gpa-hybird", 4)


def test_gaussian_attention_can_do_without_one_of_its_parts() -> None:
    whole, projected, dot = (
        KernelSelfAttention(16, 2, causal=True, **variants.get("gka-loo-bank", **options))
        for options in ({}, {"projections": "qkvo"}, {"content": "dot", "head_norm": False})
    )
    assert [layer.projections.form for layer in (whole, projected, dot)] == ["o", "qkvo", "o"]
    assert [type(layer.content) for layer in (projected, dot)] == [GaussianContent, DotProduct]
    assert all(layer.exclude_self and layer.position is not None for layer in (projected, dot))
    with pytest.raises(InputError, match=r"kernel in an expression must be one of .*, got 'dott'"):
        variants.get("gka", content="dott")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nystromformer", "its landmarks are means over the whole text"),
        ("linformer-gate", "each mixture of keys is over the whole text"),
        ("skyformer", "landmarks='learned' are not"),
        (["rope", "gka-nystrom"], "landmarks='learned' are not"),
    ],
)
def test_what_sees_later_tokens_is_refused_in_a_language_model(name: Any, reason: str) -> None:
    """Without a number of torch's generator being drawn for it."""
    from nadaraya.models import KernelGPTConfig  # with Triton, which tests of its interpreter import later

    state = torch.get_rng_state()
    with pytest.raises(InputError, match=f"variant '.*' must be in a layer that is not causal.*{reason}$"):
        KernelGPTConfig(variant=name)
    if "learned" in reason:
        config = KernelGPTConfig(variant=name, variant_options={"landmarks": "learned"})
        assert config.layer_types[0] == ("hybrid" if name == "skyformer" else "full_attention")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_window_of_the_model_is_no_wider_than_that_of_the_variant() -> None:
    from nadaraya.models import KernelGPTConfig

    config = KernelGPTConfig(variant="krause", window_pattern="SL", sliding_window=200)
    assert [config.attention_options(layer)["window"] for layer in range(2)] == [128, 128]
    config = KernelGPTConfig(variant="krause", window_pattern="SL", sliding_window=20)
    assert [config.attention_options(layer)["window"] for layer in range(2)] == [20, 128]


def test_options_reach_the_bank() -> None:
    layer = KernelSelfAttention(64, 4, **variants.get("gpa-rope", num_terms=5, init="geometric"))
    assert layer.position.kernel.sigma.shape == (4, 5)


def test_a_kernel_is_multiplied_added_or_mixed() -> None:
    """Added it is that of exp(…), as `gpa` is; mixed it starts as it is multiplied."""
    x, layers = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0)), {}
    for how, expression in {"multiply": "3*rq", "add": "3*rq", "mix": "3*rq", "exp": "exp(3*rq)"}.items():
        torch.manual_seed(0)
        options = {"how": how} if how != "exp" else {}
        made = variants.get("kernel", expression=expression, **options)
        layers[how] = KernelSelfAttention(16, 2, causal=True, **made)
    out = {how: layer(x) for how, layer in layers.items()}
    torch.testing.assert_close(out["mix"], out["multiply"])
    torch.testing.assert_close(out["add"], out["exp"], rtol=0, atol=0)
    assert not torch.allclose(out["add"], out["multiply"])
    torch.nn.init.normal_(layers["mix"].position.weights.weight)
    assert not torch.allclose(layers["mix"](x), out["multiply"])
    layers["mix"].keep_heads([1])
    assert layers["mix"](x).shape == x.shape
    assert variants.get("kernel", rotary="static")["rotary"] is not None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gpa-mull", {}, "variant must be one of .* did you mean 'gpa-mul'.*--import MODULE"),
        ("gpa", {"num_term": 3}, "did you mean 'num_terms'"),
        ("gpa-drop-xsa", {}, "variant must be one of .* got 'gpa-drop-xsa'"),
        ("rope-gate-gate", {}, "variant must be one of .* got 'rope-gate-gate'"),
        ("loo", {}, "variant must be one of .* got 'loo'"),
        ("gka", {"rotary": "statik"}, "rotary must be .* did you mean 'static'"),
        ("kernel", {"how": "mixed"}, "how must be one of 'add', 'mix', 'multiply', got 'mixed'"),
        ("kernel", {"expression": "rq*periodc"}, "did you mean 'periodic'"),
        ("kernel", {"expression": 8}, "expression must be a text of at most 1000 characters"),
        ("gka", {"values": "feature"}, "values must be .* did you mean 'features'"),
        ("alibi", {"slope": 1}, "options of variant 'alibi' must be none, got 'slope'"),
    ],
)
def test_misspelt_names_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        variants.get(name, **options)


def test_a_variant_of_ones_own_has_options_a_description_and_every_suffix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variants, "_VARIANTS", dict(variants._VARIANTS))

    @variants.register("epanechnikov")
    def build(width: float = 9.0) -> dict[str, Any]:
        """Multiplied by Epanechnikov's kernel of the lag."""
        return {"position": Epanechnikov(width)}

    assert variants.options("epanechnikov") == {"width": 9.0}
    assert variants.describe("epanechnikov") == "Multiplied by Epanechnikov's kernel of the lag."
    layer = KernelSelfAttention(16, 2, causal=True, **variants.get("epanechnikov-loo-gate", width=3.0))
    assert layer.exclude_self
    variants.register("epanechnikov")(build)  # a cell of a notebook that runs twice
    with pytest.raises(InputError, match="one that is not taken, got 'epanechnikov'"):
        variants.register("epanechnikov")(lambda: {})
    for name in ("rope", "gpa-hybrid", "gpa-mul-loo", "my-loo", "Mine", "a--b", ""):
        with pytest.raises(InputError, match="name of a variant must be"):
            variants.register(name)

"""Maps are the weights of the very pass: times the values, through W_O, they give each layer's own output."""

from collections.abc import Iterator
from typing import Any

import pytest
import timm
import torch
from causal_variants import CAUSAL, causal_options
from small_models import in_enough_digits
from torch import Tensor, nn

import nadaraya.models.vit
from nadaraya.attention import variants
from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.data.tokenizer import train_character_tokenizer
from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps, capture_attention
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

SMALL: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 24,
    "depth": 3,
    "num_heads": 3,
    "num_classes": 5,
}
RELATED = (
    "linear", "performer", "kernelized-rpe", "linformer", "skyformer", "gka-nystrom", "gka-features",
    "krause", "gka-nearest", "non-local", "local-linear", "parallax",
)  # fmt: skip
VISION: dict[str, dict[str, Any]] = {
    "gka": {},
    "exclude-self": {"variant": "gka-loo"},
    "vlt": {"variant": "vlt"},
    "grid-bank": {"variant_options": {"grid_kernel": "bank"}},
    "channels": {"variant_options": {"per": "channel"}},
    "head-norm": {"variant_options": {"head_norm": True, "eps": 0.01}},
    "hybrid": {"pattern": "GGA"},
    "registers": {"reg_tokens": 4},
    "no-class-token": {"class_token": False, "global_pool": "avg"},
    "dynamic": {"dynamic_img_size": True},
    "timm": {"name": "vit_tiny_patch16_224"},
    "timm-qk-norm": {
        "name": "vit_tiny_patch16_224",
        "qk_norm": True,
        "scale_attn_norm": True,
        "qkv_bias": False,
    },
    **{name: {"variant": name} for name in RELATED},
}


def vision_model(name: str = "gka_tiny_patch16_224", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, **options})
    for (
        parameter
    ) in model.parameters():  # at the start, weights are nearly uniform: a wrong one would not show
        nn.init.normal_(parameter, std=0.4)
    return model


def language_model(**options: Any) -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3}
    given = {"variant_options": causal_options(options.get("variant")), "initializer_range": 0.3, **options}
    return in_enough_digits(KernelGPTForCausalLM(KernelGPTConfig(**{**sizes, **given})).eval())


def passes(model: nn.Module, *inputs: Tensor, **options: Any) -> Iterator[tuple[nn.Module, Tensor, Tensor]]:
    """(layer, input, output) of every attention layer in a plain pass, seen by hooks of the test's own."""
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []
    layers = [m for m in model.modules() if isinstance(m, KernelSelfAttention | timm.layers.Attention)]
    handles = [m.register_forward_hook(lambda m, args, out: seen.append((m, args[0], out))) for m in layers]
    with torch.no_grad():
        model(*inputs, **options)
    for handle in handles:
        handle.remove()
    yield from seen


def values_of(layer: Any, x: Tensor) -> Tensor:
    """(B, H, N, d): W_V x, or that of the matrix that values share, or the features; normalised as keys."""
    batch, tokens, _ = x.shape
    if isinstance(layer, timm.layers.Attention):
        return layer.qkv(x).chunk(3, dim=-1)[2].reshape(batch, tokens, layer.num_heads, -1).transpose(1, 2)
    parts = layer.projections
    matrix = {"q(kv)o": parts.k_proj, "(qkv)o": parts.q_proj}.get(parts.form, parts.v_proj)
    head_dim = layer.dim // layer.num_heads
    values = x if matrix is None else matrix(x)
    values = values.reshape(batch, tokens, -1, head_dim).transpose(1, 2)
    if parts.head_norm and parts.form in ("o", "q(kv)o", "(qkv)o"):
        values = nn.functional.rms_norm(values, (head_dim,))
    return values.repeat_interleave(layer.num_heads // values.shape[1], dim=1)


@torch.no_grad()
def check_outputs(maps: AttentionMaps, model: nn.Module, *inputs: Tensor, **options: Any) -> None:
    """Weights times values through the projection are what every layer gave."""
    count = 0
    for layer, (module, x, out) in zip(maps.layers, passes(model, *inputs, **options), strict=True):
        heads = layer.weights.to(x.dtype) @ values_of(module, x)
        if getattr(module, "output_gate", None) is not None:
            heads = module.output_gate(heads, x)
        merged = heads.transpose(1, 2).flatten(2)
        if isinstance(module, timm.layers.Attention):
            expected = module.proj(module.norm(merged))
        else:
            expected = module.projections.o_proj(merged)
        torch.testing.assert_close(expected, out, rtol=2e-4, atol=2e-5)
        assert module is model.get_submodule(layer.name)
        assert layer.error < 1e-4
        count += 1
    assert count == len(maps.layers) == 3


@pytest.mark.parametrize("case", VISION)
def test_weights_give_the_output_of_every_vision_layer(case: str) -> None:
    model = vision_model(**VISION[case]).eval()
    images = torch.randn(2, 3, 24, 16) if case == "dynamic" else torch.randn(2, 3, 16, 16)
    maps = capture_attention(model, images)
    check_outputs(maps, model, images)
    for weights in maps.weights:
        assert weights.dtype == torch.float32
        assert weights.shape == (2, 3, maps.num_tokens, maps.num_tokens)
    assert maps.grid == ((6, 4) if case == "dynamic" else (4, 4))
    assert maps.num_prefix_tokens == {"registers": 5, "no-class-token": 0}.get(case, 1)
    assert maps.reads == ("mean" if case == "no-class-token" else "cls")
    torch.testing.assert_close(maps.output, model(images))


@pytest.mark.parametrize("variant", [*CAUSAL, ["gka", "rope"], ["gka-loo-bank", "vlt", "alibi"]])
@pytest.mark.parametrize("padded", [False, True])
def test_weights_give_the_output_of_every_language_layer(variant: str | list[str], padded: bool) -> None:
    model = language_model(variant=variant, window_pattern="SL", sliding_window=4)
    ids = torch.randint(11, (2, 9))
    options = {
        "attention_mask": torch.ones(2, 9).index_put((torch.tensor(1), torch.arange(3)), torch.tensor(0.0))
    }
    options = options if padded else {}
    maps = capture_attention(model, ids, **options)
    check_outputs(maps, model, ids, **options)
    for weights in maps.weights:
        assert not weights.triu(1).any()
        if padded:
            assert not weights[1, :, :, :3].any()
    assert (maps.padding is not None) == padded
    assert maps.reads == "last"


def test_grouped_heads_and_rotated_values() -> None:
    ids = torch.randint(11, (1, 7))
    model = language_model(variant="rope", num_key_value_heads=1)
    check_outputs(capture_attention(model, ids), model, ids)
    rotated = language_model(variant="gka", variant_options={"values": "rotated"})
    assert max(layer.error for layer in capture_attention(rotated, ids).layers) < 1e-4


def test_masks_of_a_call_are_part_of_its_weights() -> None:
    x, mask = torch.randn(1, 6, 24), torch.rand(6, 6) < 0.7
    mask.fill_diagonal_(True)
    for layer in (
        timm.layers.Attention(24, 3),
        KernelSelfAttention(24, 3, **variants.get("gka", rotary=None)),
    ):
        for options in ({"attn_mask": mask}, {"is_causal": True}, {"attn_mask": torch.randn(6, 6)}):
            (captured,) = (
                capture_attention(nn.Sequential(layer), x)
                if not options
                else [capture_attention(Called(layer, options), x).layers[0]]
            )
            assert captured.error < 1e-5
            allowed = mask if options.get("attn_mask") is mask else torch.ones(6, 6).bool()
            allowed = allowed.tril() if "is_causal" in options else allowed
            assert torch.equal(captured.weights[0] > 0, allowed.expand(3, 6, 6))


class Called(nn.Module):
    """A layer with fixed options of its call."""

    def __init__(self, layer: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.layer, self.options = layer, options

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, **self.options)


def state(model: nn.Module) -> list[Any]:
    """All of a model that a capture could disturb."""
    parts: list[Any] = [torch.get_rng_state().tolist(), torch.is_grad_enabled()]
    for module in model.modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._forward_hooks_with_kwargs)
        parts.append([module.training, *map(len, hooks)])
        parts.append([getattr(module, name, None) for name in ("fused_attn", "backend")])
    parts.extend((name, value.tolist()) for name, value in model.state_dict().items())
    return parts


@pytest.mark.parametrize("fused", [True, False])
def test_the_model_is_left_as_it_was(fused: bool) -> None:
    model = vision_model(pattern="GA", drop_path_rate=0.5, proj_drop_rate=0.5).train()
    model.blocks[1].eval()
    for block in model.blocks:
        block.attn.fused_attn = fused
    model.blocks[0].attn.register_forward_hook(lambda *_: None)
    before = state(model)
    images = torch.randn(1, 3, 16, 16)
    before[0] = torch.get_rng_state().tolist()
    maps = capture_attention(model, images)
    assert state(model) == before
    torch.testing.assert_close(maps.output, model.eval()(images))  # dropout took no part


def test_the_model_is_left_as_it_was_after_an_error() -> None:
    model = vision_model().train()
    before = state(model)

    def fail(*_: Any) -> None:
        raise ArithmeticError

    handle = model.blocks[1].register_forward_hook(fail)
    with pytest.raises(ArithmeticError):
        capture_attention(model, torch.zeros(1, 3, 16, 16))
    handle.remove()
    assert state(model) == before


def test_one_pass_and_no_gradients() -> None:
    model = vision_model()
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1

    model.patch_embed.register_forward_hook(counted)
    maps = capture_attention(model, torch.randn(1, 3, 16, 16).requires_grad_())
    assert count == 1
    assert not maps.output.requires_grad
    assert not any(weights.requires_grad for weights in maps.weights)


def test_half_precision_gives_float32_weights_of_its_own_pass() -> None:
    model, images = vision_model(pattern="GA").bfloat16(), torch.randn(1, 3, 16, 16).bfloat16()
    maps = capture_attention(model, images)
    for layer in maps.layers:
        assert layer.weights.dtype == torch.float32
        torch.testing.assert_close(layer.weights.sum(-1), torch.ones(1, 3, 17))
    with torch.autocast("cpu", torch.bfloat16):
        under = capture_attention(model.float(), images.float())
    assert max(layer.error for layer in under.layers) < 0.02


def test_bandwidths_are_those_of_the_layers() -> None:
    model = vision_model(pattern="GA", variant_options={"per": "channel"})
    first, second, third = capture_attention(model, torch.randn(1, 3, 16, 16)).layers
    assert second.bandwidth is None
    for layer, block in ((first, 0), (third, 2)):
        assert layer.bandwidth is not None
        log_bandwidth = model.blocks[block].attn.content.log_bandwidth
        torch.testing.assert_close(layer.bandwidth, log_bandwidth.exp().detach())
        assert layer.bandwidth.shape == (3, 8)


def test_tokens_are_the_characters_of_the_text() -> None:
    tokenizer = train_character_tokenizer("ab \nc")
    model = language_model()
    ids = torch.tensor([tokenizer("a b\n")["input_ids"], tokenizer("cabc")["input_ids"]])
    assert capture_attention(model, ids, tokenizer=tokenizer).tokens == (("a", " ", "b", "\n"), tuple("cabc"))
    assert capture_attention(model, ids).tokens is None


def test_cached_tokens_are_refused_and_an_empty_cache_is_not() -> None:
    model, ids = language_model(), torch.randint(11, (1, 5))
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(InputError, match="5 tokens were cached before"):
        capture_attention(model, ids, past_key_values=cache)
    assert capture_attention(model, ids, use_cache=True).num_tokens == 5


def test_models_that_cannot_be_looked_into_are_refused() -> None:
    with pytest.raises(InputError, match="no attention layer"):
        capture_attention(nn.Linear(2, 2), torch.zeros(1, 2))
    strange = vision_model()
    strange.blocks[1].attn = nn.MultiheadAttention(24, 3)
    with pytest.raises(InputError, match=r"blocks\.1\.attn of KernelVision.*, got MultiheadAttention"):
        capture_attention(strange, torch.zeros(1, 3, 16, 16))
    unused = nn.ModuleDict({"one": KernelSelfAttention(8, 2)})
    unused.forward = lambda x: x
    with pytest.raises(InputError, match="called none of its attention layers"):
        capture_attention(unused, torch.zeros(1, 4, 8))


def test_a_layer_with_another_formula_is_refused() -> None:
    class Doubled(KernelSelfAttention):
        def forward(self, x: Tensor, *args: Any, **options: Any) -> Any:
            result = super().forward(x, *args, **options)
            return result if "return_weights" in options else 2 * result  # type: ignore[operator]

    with pytest.raises(InputError, match="not that of its weights by the definition"):
        capture_attention(nn.Sequential(Doubled(8, 2)), torch.randn(1, 4, 8))


def test_too_many_tokens_are_refused_before_any_weights_exist() -> None:
    model = vision_model()
    with pytest.raises(InputError, match="at most 16 tokens, got 17"):
        capture_attention(model, torch.zeros(1, 3, 16, 16), max_bytes=4 * 9 * 16 * 16)
    assert capture_attention(model, torch.zeros(1, 3, 16, 16), max_bytes=4 * 9 * 17 * 17).num_tokens == 17


def test_a_compiled_model_shows_what_it_was_made_from() -> None:
    model = vision_model()
    images = torch.randn(1, 3, 16, 16)
    compiled = capture_attention(torch.compile(model), images)
    for one, other in zip(compiled.weights, capture_attention(model, images).weights, strict=True):
        assert torch.equal(one, other)


assert nadaraya.models.vit

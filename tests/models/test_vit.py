"""The vision models: timm's interfaces, the variants' laws, and agreement with timm's own attention."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from timm.optim import param_groups_weight_decay
from torch import nn

from nadaraya.attention.content import GaussianContent
from nadaraya.errors import InputError
from nadaraya.kernels import Exp, KernelBank
from nadaraya.models.vit import KernelVisionTransformer, convert, create_image_model
from nadaraya.models.vit.attention import VISION_VARIANTS, VisionAttention
from nadaraya.models.vit.factory import image_shape

SMALL: dict[str, Any] = {
    "img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5,
}  # fmt: skip
VARIANTS: list[dict[str, Any]] = [
    {},
    {"variant": "gka-loo"},
    {"variant": "vlt"},
    {"variant": "softmax"},
    {"variant_options": {"per": "channel"}},
    {"variant_options": {"per": "channel", "shift": True}},
    {"variant": "gka-loo", "variant_options": {"grid_kernel": "bank"}},
    {"variant_options": {"grid_kernel": lambda heads: Exp(KernelBank(heads, 2, init="grid"))}},
    {"pattern": "GA", "reg_tokens": 2},
    {"class_token": False, "global_pool": "avg", "variant_options": {"grid_kernel": "bank"}},
    {"variant_options": {"grid_kernel": "table"}},
    *({"variant": name} for name in VISION_VARIANTS if name not in ("gka", "gka-loo", "vlt", "softmax")),
]


def small(name: str = "gka_tiny_patch16_224", **options: Any) -> KernelVisionTransformer:
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, **options})
    assert isinstance(model, KernelVisionTransformer)
    return model


@pytest.mark.parametrize("options", VARIANTS)
def test_every_parameter_has_a_gradient_and_the_batch_is_no_context(options: dict[str, Any]) -> None:
    model = small(**options).eval()
    images = torch.randn(3, 3, 32, 32)
    logits = model(images)
    logits.square().sum().backward()
    assert logits.shape == (3, 5)
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    # The class token alone reads the last layer, and it has no place in the grid.
    unread = "blocks.2.attn.grid_kernel" if model.has_class_token else "none"
    still = [name for name, p in model.kernel_parameters() if not p.grad.abs().sum() > 0]
    assert all(name.startswith(unread) for name in still), still
    torch.testing.assert_close(model(images[1:2]), logits[1:2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", VARIANTS)
def test_fast_and_defining_attention_agree(options: dict[str, Any]) -> None:
    model = small(**options).eval()
    images = torch.randn(2, 3, 32, 32)
    fast = model(images)
    for block in model.blocks:
        block.attn.fused_attn = False
    torch.testing.assert_close(model(images), fast, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_options", VARIANTS)
def test_weights_are_a_regression_of_the_layer_s_own_input(model_options: dict[str, Any]) -> None:
    attention = next(m for m in small(**model_options).modules() if isinstance(m, VisionAttention))
    x = torch.randn(2, attention.num_prefix_tokens + 16, 24)
    out, weights = attention.weights(x)
    torch.testing.assert_close(out, attention(x), rtol=1e-4, atol=1e-5)
    if model_options.get("variant") not in ("nystromformer", "linformer", "skyformer"):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]))
    if attention.exclude_self:
        assert weights.diagonal(dim1=-2, dim2=-1).abs().max() == 0.0
    v_proj = attention.projections.v_proj
    values = x if v_proj is None else v_proj(x)
    heads = values.view(2, -1, 3, 8).transpose(1, 2)
    smoothed = weights @ heads
    if attention.value_convolution is not None:
        smoothed = smoothed + attention.value_convolution(heads, x.shape[1], False, None)
    expected = attention.proj(smoothed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(expected, out, rtol=1e-4, atol=1e-5)


def test_gaussian_weights_are_those_of_kundu_et_al() -> None:
    attention = VisionAttention(8, 2, content=GaussianContent, projections="o")
    attention.content.kernel.bandwidth = torch.tensor([0.2, -0.4]).exp()
    x = torch.randn(1, 5, 8)
    _, weights = attention.weights(x)
    for head, sigma in enumerate(torch.tensor([0.2, -0.4]).exp()):
        tokens = x[0, :, 4 * head : 4 * head + 4]
        kernel = torch.exp(-(tokens[:, None] - tokens).square().sum(-1) / (2 * sigma**2))
        torch.testing.assert_close(weights[0, head], kernel / kernel.sum(-1, keepdim=True))


def test_bandwidths_by_channel_that_are_equal_are_one_bandwidth() -> None:
    torch.manual_seed(1)
    content = partial(GaussianContent, bandwidth=1.7)
    one = VisionAttention(12, 3, content=content, projections="o")
    many = VisionAttention(12, 3, content=partial(content, per="channel"), projections="o")
    many.projections.load_state_dict(one.projections.state_dict())
    x = torch.randn(2, 9, 12)
    torch.testing.assert_close(many(x), one(x))


def test_converting_to_softmax_changes_nothing() -> None:
    torch.manual_seed(2)
    model = timm.create_model("vit_tiny_patch16_224", **SMALL).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    converted = convert(model, "softmax")
    assert converted is model
    torch.testing.assert_close(converted(images), expected, rtol=1e-4, atol=1e-5)


def test_converting_keeps_the_weights_that_both_have() -> None:
    model = timm.create_model("vit_tiny_patch16_224", **SMALL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    converted = convert(model, "vlt", pattern="GA")
    assert isinstance(converted, KernelVisionTransformer)
    first, second = converted.blocks[0].attn, converted.blocks[1].attn
    assert isinstance(first, VisionAttention)
    assert not isinstance(second, VisionAttention)
    torch.testing.assert_close(first.projections.q_proj.weight, before["blocks.0.attn.qkv.weight"][:24])
    torch.testing.assert_close(first.projections.k_proj.bias, before["blocks.0.attn.qkv.bias"][24:48])
    torch.testing.assert_close(first.proj.weight, before["blocks.0.attn.proj.weight"])
    assert (
        "blocks.0.attn.content.kernel.log_bandwidth"
        in convert(timm.create_model("vit_tiny_patch16_224", **SMALL)).no_weight_decay()
    )


def test_converting_refuses_what_it_cannot_keep() -> None:
    normed = timm.create_model("vit_tiny_patch16_224", qk_norm=True, **SMALL)
    with pytest.raises(InputError, match="without norms"):
        convert(normed)
    with pytest.raises(InputError, match="model must be timm's VisionTransformer, got 'ResNet'"):
        convert(timm.create_model("resnet18"))
    assert normed(torch.randn(1, 3, 32, 32)).shape == (1, 5)


def test_timm_s_interfaces() -> None:
    features = timm.create_model("gka_tiny_patch16_224", features_only=True, out_indices=(0, 2), **SMALL)
    assert [f.shape for f in features(torch.randn(1, 3, 32, 32))] == [(1, 24, 4, 4), (1, 24, 4, 4)]
    model = small(drop_path_rate=0.2, num_classes=7)
    model.reset_classifier(3)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    groups = timm.models.group_parameters(model, model.group_matcher())
    assert sorted(name for names in groups.values() for name in names) == sorted(
        n for n, _ in model.named_parameters()
    )
    assert "gka_base_patch16_224" in timm.list_models("gka_*")
    assert timm.create_model("vlt_small_patch16_224", device="meta").embed_dim == 384


def test_kernels_are_kept_from_weight_decay() -> None:
    model = small(variant_options={"grid_kernel": "bank", "per": "channel"})
    plain, decayed = param_groups_weight_decay(model, 0.1, no_weight_decay_list=model.no_weight_decay())
    undecayed = {id(p) for p in plain["params"]}
    assert plain["weight_decay"] == 0.0
    assert all(id(p) in undecayed for _, p in model.kernel_parameters())
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert len(dict(model.kernel_parameters())) == 3 * (1 + 2 * 4)


def test_a_grid_follows_the_size_of_the_image() -> None:
    model = small(variant_options={"grid_kernel": "decay"})
    model.set_input_size((16, 48))
    assert model(torch.randn(1, 3, 16, 48)).shape == (1, 5)
    assert image_shape(model) == (3, 16, 48)
    dynamic = small(variant_options={"grid_kernel": "decay"}, dynamic_img_size=True).eval()
    static = small(variant_options={"grid_kernel": "decay"}).eval()
    static.set_input_size((40, 24))
    images = torch.randn(1, 3, 40, 24)
    torch.testing.assert_close(dynamic(images), static(images), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="patch_drop_rate must be 0"):
        small(variant_options={"grid_kernel": "decay"}, patch_drop_rate=0.5)


def test_masks_and_causality_are_those_of_timm() -> None:
    torch.manual_seed(3)
    theirs = timm.layers.Attention(16, 2, qkv_bias=True).eval()
    host = nn.Module()
    host.blocks = nn.Sequential(nn.Module())
    ours = VisionAttention(16, 2, qkv_bias=True)
    ours.proj.load_state_dict(theirs.proj.state_dict())
    split = ours.projections
    for third, layer in enumerate((split.q_proj, split.k_proj, split.v_proj)):
        layer.load_state_dict(
            {"weight": theirs.qkv.weight.chunk(3)[third], "bias": theirs.qkv.bias.chunk(3)[third]}
        )
    x, mask = torch.randn(2, 7, 16), torch.rand(2, 1, 7, 7) < 0.6
    mask |= torch.eye(7, dtype=torch.bool)
    torch.testing.assert_close(ours(x, attn_mask=mask), theirs(x, attn_mask=mask), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours(x, is_causal=True), theirs(x, is_causal=True), rtol=1e-4, atol=1e-5)


def test_compiled_models_agree() -> None:
    model = small(variant="gka-loo", variant_options={"grid_kernel": "decay"}, depth=1)
    images = torch.randn(2, 3, 32, 32)
    expected = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    compiled = torch.compile(model, backend="aot_eager")
    actual = torch.autograd.grad(compiled(images).square().sum(), list(model.parameters()))
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "GX"}, "pattern must be made of the letters G .* got 'GX'"),
        ({"variant": "gak"}, "did you mean 'gka'"),
        ({"variant_options": {"bandwith": 1.0}}, "did you mean 'bandwidth'"),
        ({"variant_options": {"grid_kernel": "banks"}}, "did you mean 'bank'"),
        ({"num_heads": 5}, "embed_dim must be a multiple of num_heads = 5"),
        ({"num_heads": 0}, "embed_dim must be a multiple of num_heads = 0"),
        ({"qk_norm": True}, "head_norm"),
        ({"pretrained": True}, "no pretrained weights"),
        ({"variant_options": {"bandwidth": 0.0}}, "bandwidth must be a positive"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(**options)


@pytest.mark.parametrize(
    ("name", "image_size", "shape"),
    [
        ("gka_tiny_patch16_224", 64, (1, 3, 64, 64)),
        ("resnet10t", 40, (1, 3, 40, 40)),
        ("vlt_tiny_patch16_224", None, (1, 3, 224, 224)),
    ],
)
def test_models_are_made_for_an_image_size(name: str, image_size: int | None, shape: tuple[int, ...]) -> None:
    options = {"num_classes": 7} if name == "resnet10t" else {"num_classes": 7, "depth": 1}
    model = create_image_model(name, image_size=image_size, options=options)
    assert not model.training
    assert image_shape(model, image_size) == shape[1:]
    assert model(torch.randn(shape)).shape == (1, 7)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "gka_tinny_patch16_224",
            {},
            r"model must be .*timm.list_models\(\), got .*did you mean 'gka_tiny_patch16_224'",
        ),
        ("hf-hub:timm/vit", {}, "model must be a name"),
        ("vit_tiny_patch16_224.nonsense", {}, "nonsense"),
        ("gka_tiny_patch16_224", {"options": {"embed_dims": 8}}, "'embed_dims': did you mean 'embed_dim'"),
        ("gka_tiny_patch16_224", {"options": {"pretrained": True}}, "pretrained must be left out"),
        (
            "gka_tiny_patch16_224",
            {"image_size": 100},
            r"image_size must be a multiple .*16 pixels.*, got 100",
        ),
        ("vgg11", {"options": {"drop_path_rate": 0.2}}, "drop_path_rate must be 0 for vgg11, .* got 0.2"),
    ],
)
def test_models_that_cannot_be_made_are_one_line(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        create_image_model(name, device="meta", **given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["gka_small_patch16_224", "vlt_base_patch16_224"])
def test_images_are_prepared_as_those_of_deit(name: str) -> None:
    deit, ours = (timm.get_pretrained_cfg(each) for each in ("deit_small_patch16_224", name))
    for field in ("mean", "std", "crop_pct", "interpolation", "input_size", "first_conv", "classifier"):
        assert getattr(ours, field) == getattr(deit, field), field


def test_masks_and_the_kernel_of_the_grid_act_together() -> None:
    layer = VisionAttention(16, 2, grid_kernel="decay")
    layer.grid_size, layer.num_prefix_tokens = (2, 3), 1
    x, mask = torch.randn(2, 7, 16), torch.rand(2, 1, 7, 7) < 0.6
    mask |= torch.eye(7, dtype=torch.bool)
    out, weights = layer.weights(x, mask)
    assert bool((weights[~mask.expand_as(weights)] == 0).all())
    added = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(layer(x, attn_mask=added), out)
    free = layer.weights(x)[1].masked_fill(~mask, 0)
    torch.testing.assert_close(weights, free / free.sum(-1, keepdim=True))
    layer.grid_size = (2, 2)
    with pytest.raises(InputError, match="7 tokens"):
        layer(x)


def test_options_of_the_blocks_reach_the_attention() -> None:
    model = small(qkv_bias=False, proj_bias=False, attn_drop_rate=0.25, proj_drop_rate=0.5, variant="softmax")
    for block in model.blocks:
        assert block.attn.projections.q_proj.bias is None
        assert block.attn.proj.bias is None
        assert (block.attn.dropout, block.attn.proj_drop.p) == (0.25, 0.5)
    layer = VisionAttention(8, 2, proj_drop=1.0)
    assert not layer(torch.randn(1, 5, 8)).any()
    assert layer.eval()(torch.randn(1, 5, 8)).any()


@pytest.mark.parametrize("name", ["gka_tiny_patch16_224", "vit_tiny_patch16_224"])
@pytest.mark.parametrize("how", ["pretrained_cfg", "pretrained_cfg_overlay"])
@pytest.mark.parametrize("size", [32, 64])
@torch.no_grad()
def test_weights_load_in_each_of_timm_s_ways_also_at_another_size(
    name: str, how: str, size: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"num_classes": 5, "depth": 1}
    model = timm.create_model(name, img_size=32, **options).eval()
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    weights = {"file": str(tmp_path / "a.safetensors"), "num_classes": 5}
    loaded = timm.create_model(name, pretrained=True, img_size=size, **{how: weights}, **options).eval()
    if size == 32:
        images = torch.randn(2, 3, 32, 32)
        assert torch.equal(loaded(images), model(images))
    else:
        expected = resample_abs_pos_embed(model.pos_embed, [size // 16, size // 16])
        torch.testing.assert_close(loaded.pos_embed, expected)
        assert torch.equal(loaded.head.weight, model.head.weight)


@pytest.mark.parametrize("variant", VISION_VARIANTS)
@torch.no_grad()
def test_a_layer_that_lost_heads_is_one_whose_output_matrix_ignores_them(variant: str) -> None:
    layer = small(variant=variant).eval().blocks[0].attn
    x = torch.randn(2, 17, 24)
    silenced = copy.deepcopy(layer)
    silenced.proj.weight.unflatten(1, (3, -1))[:, 1] = 0.0
    layer.keep_heads([0, 2])
    tolerance = 1e-1 if variant == "nystromformer" else 1e-4  # its iteration starts from all heads
    torch.testing.assert_close(layer(x), silenced(x), rtol=tolerance, atol=tolerance)


def test_larger_images_and_more_mixtures_than_tokens_are_one_line() -> None:
    with pytest.raises(InputError, match=r"num_mixtures must be at most num_tokens = 17, got 18"):
        small(variant="linformer", variant_options={"num_mixtures": 18})
    for variant, message in (
        ("linformer", "number of tokens must be at most num_tokens = 17 of Linformer, got 37"),
        ("kernelized-rpe", r"grid of patches must be at most 4 x 4 with its table, got \(6, 6\)"),
    ):
        model = small(f"{variant.replace('-', '_')}_tiny_patch16_224")
        model.set_input_size((48, 48))
        with pytest.raises(InputError, match=message):
            model(torch.randn(1, 3, 48, 48))
        with pytest.raises(InputError, match="patch_drop_rate must be 0"):
            small(variant=variant, patch_drop_rate=0.5)

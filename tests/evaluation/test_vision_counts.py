"""Counts of image models: the tables of Kundu et al. (2026), closed forms, and files that are written."""

import io
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("timm")

from nadaraya.errors import InputError
from nadaraya.evaluation.efficiency import ImageModelCost, image_model_cost
from nadaraya.models.vit import create_image_model

# Tables 2, 3 and 5 as printed: total, attention, MLP (M), σ parameters, FLOPs (G), checkpoint (table 2).
PRINTED = {
    "deit_tiny_patch16_224": ("5.72", "1.78", "3.55", 0, "2.51", "21.9"),
    "vlt_tiny_patch16_224": ("5.28", None, None, 0, "2.33", None),
    "gka_tiny_patch16_224": ("4.38", "0.44", "3.55", 36, "1.98", "16.8"),
    "deit_small_patch16_224": ("22.05", "7.10", "14.18", 0, "9.20", "84.2"),
    "gka_small_patch16_224": ("16.73", "1.77", "14.18", 72, "7.11", "63.9"),
    "deit_base_patch16_224": ("86.57", "28.35", "56.67", 0, "35.13", "330.3"),
    "gka_base_patch16_224": ("65.31", "7.09", "56.67", 144, "26.76", "249.2"),
}
SHAPES = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}
DEPTH, TOKENS, PATCHES, CLASSES = 12, 197, 196, 1000


@cache
def cost(name: str, **options: Any) -> ImageModelCost:
    return image_model_cost(create_image_model(name, device="meta", options=options))


def rounded(value: float, digits: str) -> str:
    return str(Decimal(value).quantize(Decimal(digits), ROUND_HALF_UP))


@pytest.mark.parametrize("name", PRINTED)
def test_printed_digits(name: str) -> None:
    counted = cost(name)
    total, attention, mlp, sigmas, flops, checkpoint = PRINTED[name]
    if name != "vlt_tiny_patch16_224":
        assert rounded(counted.parameters / 1e6, "0.01") == total
    assert attention is None or rounded(counted.attention_parameters / 1e6, "0.01") == attention
    assert mlp is None or rounded(counted.mlp_parameters / 1e6, "0.01") == mlp
    assert counted.kernel_parameters == sigmas
    assert rounded(counted.flops_per_image / 1e9, "0.01") == flops
    assert checkpoint is None or rounded(counted.checkpoint_bytes / 2**20, "0.1") == checkpoint


def test_the_printed_vlt_keeps_the_bias_of_the_value_projection_that_it_drops() -> None:
    """5.28 M is DeiT-Ti without the 12 matrices W_V; without their biases too it is 5.27 M, as ours is."""
    width, _ = SHAPES["tiny"]
    deit, vlt = cost("deit_tiny_patch16_224"), cost("vlt_tiny_patch16_224")
    assert deit.parameters - vlt.parameters == DEPTH * (width**2 + width)
    assert rounded(vlt.parameters / 1e6, "0.01") == "5.27"
    assert rounded((deit.parameters - DEPTH * width**2) / 1e6, "0.01") == PRINTED["vlt_tiny_patch16_224"][0]


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize(("family", "projections"), [("deit", 4), ("vlt", 3), ("gka", 1)])
def test_operations_are_the_matrix_products_and_nothing_else(
    family: str, projections: int, size: str
) -> None:
    """Patch embedding and classifier count; norms, activations, softmax and exponentials do not."""
    width, heads = SHAPES[size]
    counted = cost(f"{family}_{size}_patch16_224")
    linear = 2 * TOKENS * (projections + 8) * width**2 * DEPTH
    pairs = 4 * TOKENS**2 * width * DEPTH
    ends = 2 * PATCHES * 3 * 16**2 * width + 2 * width * CLASSES
    assert counted.flops_per_image == linear + pairs + ends
    assert counted.attention_parameters == (
        DEPTH * (projections * (width**2 + width) + (heads if family == "gka" else 0))
    )


def test_deit_s_of_table_3_counts_five_operations_an_element_of_the_norms_too() -> None:
    """9.22 G is twice the 4.61 G that tools report which add 5 operations an element of the layer norms."""
    width, _ = SHAPES["small"]
    norms = (2 * DEPTH + 1) * TOKENS * width * 5
    multiply_adds = cost("deit_small_patch16_224").flops_per_image / 2
    assert rounded(2 * (multiply_adds + norms) / 1e9, "0.01") == "9.22"


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "gka_tiny_patch16_224"])
def test_checkpoints_have_the_size_of_the_file(name: str) -> None:
    model = create_image_model(name)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert image_model_cost(model).checkpoint_bytes == file.getbuffer().nbytes


def test_a_model_is_counted_at_its_own_size_and_left_as_it_was() -> None:
    options = {"img_size": 32, "patch_size": 8, "in_chans": 1, "num_classes": 10, "depth": 2}
    model = create_image_model("gka_tiny_patch16_224", options=options).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    counted = image_model_cost(model)
    assert counted.image_shape == (1, 32, 32)
    assert counted == cost("gka_tiny_patch16_224", **options)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_models_of_any_kind_and_size() -> None:
    convolutional = image_model_cost(create_image_model("resnet18", image_size=64, device="meta"), 64)
    assert convolutional.attention_parameters == 0
    assert convolutional.image_shape == (3, 64, 64)
    hybrid, pure = cost("gka_tiny_patch16_224", pattern="GGGA"), cost("gka_tiny_patch16_224")
    width, heads = SHAPES["tiny"]
    assert hybrid.attention_parameters - pure.attention_parameters == 3 * (3 * (width**2 + width) - heads)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gka_tinny_patch16_224", {}, "did you mean 'gka_tiny_patch16_224'"),
        ("deit_tiny_patch16_224", {"patern": "GA"}, "patern"),
        ("gka_tiny_patch16_224", {"pattern": "GX"}, "pattern must be .* got 'GX'"),
    ],
)
def test_what_cannot_be_built_is_an_input_error(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        create_image_model(name, options=options, device="meta")
    assert "\n" not in str(raised.value)


def test_images_of_a_size_that_the_model_does_not_take() -> None:
    with pytest.raises(InputError, match="100 × 100"):
        image_model_cost(create_image_model("gka_tiny_patch16_224", device="meta"), 100)

"""Bandwidths and kernels of the patch grid, read off a model."""

from functools import partial

import numpy as np
import pytest
import timm
import torch
from torch import nn

import nadaraya.models.vit  # noqa: F401 - registers the models
from nadaraya import KernelSelfAttention
from nadaraya.attention.content import GaussianContent
from nadaraya.errors import InputError
from nadaraya.interpret import bandwidth_matrix, capture_attention
from nadaraya.interpret.bandwidths import grid_shapes
from nadaraya.interpret.rollout import sigma_matrix


def test_layers_without_bandwidths_are_gaps() -> None:
    gaussian = KernelSelfAttention(8, 2, content=partial(GaussianContent, bandwidth=0.5))
    model = nn.Sequential(KernelSelfAttention(8, 2), gaussian)
    np.testing.assert_allclose(bandwidth_matrix(model), [[np.nan, 0.5]] * 2)
    assert bandwidth_matrix(nn.Linear(2, 2)) is None


def test_bandwidths_of_a_model_are_those_of_its_maps() -> None:
    layer = KernelSelfAttention(8, 2, content=partial(GaussianContent, per="channel"))
    with torch.no_grad():
        layer.content.log_bandwidth.copy_(torch.randn(2, 4))
    maps = capture_attention(nn.Sequential(layer), torch.randn(1, 3, 8))
    np.testing.assert_allclose(bandwidth_matrix(layer), sigma_matrix(maps), rtol=1e-6)
    expected = layer.content.log_bandwidth.mean(1).exp().detach().numpy()[:, None]
    np.testing.assert_allclose(bandwidth_matrix(layer), expected, rtol=1e-6)


def test_grid_factors_are_what_the_kernel_does_to_two_weights() -> None:
    torch.manual_seed(0)
    options = {"img_size": 32, "depth": 1, "patch_size": 8, "variant_options": {"grid_kernel": "bank"}}
    model = timm.create_model("gka_tiny_patch16_224", **options)
    (shape,) = grid_shapes(model, model, reach=3)
    np.testing.assert_array_equal(shape.initial, shape.trained)
    assert shape.trained.shape == (3, 7, 7)
    assert shape.reach == 3
    np.testing.assert_allclose(shape.trained.max(axis=(1, 2)), 1)
    logits = model.blocks[0].attn.grid_kernel.lag_logits(4, 4).detach().numpy()  # lag 0 in the middle
    ratio = np.exp(logits[:, 4, 4] - logits[:, 3, 2])  # one down and one right; one to the left
    np.testing.assert_allclose(shape.trained[:, 4, 4] / shape.trained[:, 3, 2], ratio, rtol=1e-4)


def test_models_without_a_kernel_of_the_grid_have_no_shapes() -> None:
    assert grid_shapes(nn.Sequential(KernelSelfAttention(8, 2))) == []
    with pytest.raises(InputError, match="reach must be 1 or more"):
        grid_shapes(nn.Linear(2, 2), reach=0)

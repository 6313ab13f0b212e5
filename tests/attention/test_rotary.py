"""Rotary positions: scores depend on the lag alone, norms do not change, both kinds of angles agree."""

import pytest
import torch

from nadaraya import InputError
from nadaraya.attention.rotary import RotaryEmbedding


def test_scores_depend_on_the_lag_alone() -> None:
    torch.manual_seed(0)
    rotary = RotaryEmbedding(8)
    q, k = torch.randn(2, 1, 1, 5, 8, dtype=torch.float64).unbind(0)
    near = rotary(q) @ rotary(k).transpose(-1, -2)
    far = rotary(q, 1000) @ rotary(k, 1000).transpose(-1, -2)
    torch.testing.assert_close(near, far)
    assert not torch.allclose(near, rotary(q, 1) @ rotary(k).transpose(-1, -2))


def test_rotation_keeps_norms_and_starts_at_the_identity() -> None:
    x = torch.randn(2, 3, 7, 6)
    rotated = RotaryEmbedding(6)(x)
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotated[:, :, 0], x[:, :, 0])


@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_a_pair_turns_by_its_own_angle_per_token(base: float) -> None:
    x = torch.zeros(1, 1, 4, 6)
    x[..., ::2] = 1.0
    rotated = RotaryEmbedding(6, base)(x)[0, 0]
    angles = torch.arange(4.0)[:, None] * torch.tensor([base ** (-2 * pair / 6) for pair in range(3)])
    torch.testing.assert_close(rotated[:, ::2], angles.cos())
    torch.testing.assert_close(rotated[:, 1::2], angles.sin())


def test_learned_angles_start_static_and_get_gradients() -> None:
    x = torch.randn(1, 2, 9, 8)
    learned = RotaryEmbedding(8, learned=True)
    torch.testing.assert_close(learned(x), RotaryEmbedding(8)(x))
    (learned(x) ** 3).sum().backward()
    assert learned.log_angle.grad is not None
    assert (learned.log_angle.grad != 0).all()


def test_half_precision_rotates_in_float32() -> None:
    x = torch.randn(1, 1, 3, 8).bfloat16()
    rotated = RotaryEmbedding(8)(x, 5000)
    assert rotated.dtype == torch.bfloat16
    torch.testing.assert_close(rotated, RotaryEmbedding(8)(x.float(), 5000).bfloat16())


@pytest.mark.parametrize(
    ("arguments", "message"), [((7,), "head_dim must be even .* got 7"), ((8, 1.0), "above 1")]
)
def test_bad_arguments(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RotaryEmbedding(*arguments)


@pytest.mark.parametrize("learned", [False, True])
def test_compiled_and_eager_rotations_agree(learned: bool) -> None:
    rotary = RotaryEmbedding(8, learned=learned)
    x = torch.randn(2, 3, 7, 8, requires_grad=True)
    compiled = torch.compile(rotary, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, 5), rotary(x, 5))
    (expected,) = torch.autograd.grad(rotary(x, 5).cos().sum(), x)
    (actual,) = torch.autograd.grad(compiled(x, 5).cos().sum(), x)
    torch.testing.assert_close(actual, expected)

"""Landmarks and mixtures: equal to other libraries and closed forms, blind to padding, at any length."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nadaraya import InputError, KernelSelfAttention, kernel_attention
from nadaraya.attention.features import GAUSSIAN_FLOOR
from nadaraya.attention.landmarks import NystromContent, SkyformerContent, newton_inverse
from nadaraya.attention.low_rank import LinformerContent, NystromformerContent, ValueConvolution
from nadaraya.attention.projections import LayerShape
from nadaraya.attention.published import PUBLISHED
from nadaraya.attention.related import Features  # registers the variants

SHAPE = LayerShape(32, 4, 4)
PARTS = {
    "nystrom": lambda: NystromContent(SHAPE, 5),
    "nystrom-segments": lambda: NystromContent(SHAPE, 5, "segments"),
    "skyformer": lambda: SkyformerContent(SHAPE, 6),
    "skyformer-segments": lambda: SkyformerContent(SHAPE, 6, "segments"),
    "nystromformer": lambda: NystromformerContent(SHAPE, 4),
    "linformer": lambda: LinformerContent(SHAPE, 16, 4, "none"),
}


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tensors(tokens: int = 12, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (points(batch, 4, tokens, 8, seed=seed) for seed in range(3))
    return query, key, value


def smoothed(
    part: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    left, right, content = part(query, key, mask)
    return kernel_attention(left, right, value, content=content, key_mask=mask)


def gaussian(part: NystromContent, x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-torch.cdist(x, y).square() / 2 / part.bandwidth.double()[:, None, None] ** 2)


@pytest.mark.parametrize(("tokens", "landmarks"), [(24, 6), (24, 8), (7, 7)])
def test_nystromformer_is_that_of_transformers(tokens: int, landmarks: int) -> None:
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    config = NystromformerConfig(
        hidden_size=32, num_attention_heads=4, num_landmarks=landmarks, segment_means_seq_len=tokens,
        conv_kernel_size=5, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = NystromformerSelfAttention(config).double().eval()
    content, convolution = NystromformerContent(SHAPE, landmarks), ValueConvolution(SHAPE, 5).double()
    convolution.weight = theirs.conv.weight
    x = points(2, tokens, 32)
    query, key, value = (
        linear(x).unflatten(2, (4, 8)).transpose(1, 2) for linear in (theirs.query, theirs.key, theirs.value)
    )
    ours = smoothed(content, query, key, value) + convolution(value, tokens, False, None)
    torch.testing.assert_close(ours.transpose(1, 2).flatten(2), theirs(x)[0], rtol=0, atol=1e-12)


def test_nystromformer_with_a_true_inverse_of_all_tokens_is_softmax_attention() -> None:
    """m ≥ N: A A^{-1} A = A."""
    query, key, value = tensors(8)
    logits = query @ key.mT * 8**-0.5
    between = logits.softmax(-1)
    torch.testing.assert_close(between @ torch.linalg.inv(between) @ between, between)
    exact = kernel_attention(query, key, value)
    torch.testing.assert_close(smoothed(NystromformerContent(SHAPE, 8), query, key, value), exact)
    torch.testing.assert_close(smoothed(NystromformerContent(SHAPE, 64), query, key, value), exact)


def test_the_iteration_tends_to_the_inverse() -> None:
    matrix = torch.softmax(3.0 * torch.eye(6, dtype=torch.float64) + 0.3 * points(2, 6, 6), -1)
    torch.testing.assert_close(newton_inverse(matrix, 12), torch.linalg.inv(matrix))
    rough = (newton_inverse(matrix, steps) @ matrix - torch.eye(6) for steps in (1, 2, 3))
    sizes = [each.norm() for each in rough]
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("tokens", [16, 11])
@pytest.mark.parametrize("share", ["heads", "keys-values"])
def test_linformer_is_the_package(share: str, tokens: int) -> None:
    from linformer.linformer import LinformerSelfAttention

    torch.manual_seed(0)
    theirs = LinformerSelfAttention(32, seq_len=16, k=4, heads=4, share_kv=share == "keys-values").double()
    options = PUBLISHED["linformer"](num_tokens=16, num_mixtures=4, share=share)
    content = options["content"](SHAPE).double()
    of_values = theirs.to_k if share == "keys-values" else theirs.to_v
    with torch.no_grad():
        content.of_keys.weight.copy_(theirs.proj_k.T)
        if content.of_values is not None:
            content.of_values.weight.copy_(theirs.proj_v.T)
    x = points(2, tokens, 32)
    query, key, value = (
        linear(x).unflatten(2, (4, 8)).transpose(1, 2) for linear in (theirs.to_q, theirs.to_k, of_values)
    )
    found = smoothed(content, query, key, value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(theirs.to_out(found), theirs(x), rtol=0, atol=1e-12)


def test_mixtures_that_are_each_heads_own() -> None:
    query, key, value = tensors()
    part = PARTS["linformer"]().double()
    found = smoothed(part, query, key, value)
    for head in range(4):
        e, f = (linear.weight.unflatten(0, (4, 4))[head, :, :12] for linear in (part.of_keys, part.of_values))
        weights = torch.softmax(query[:, head] @ (e @ key[:, head]).mT * 8**-0.5, -1)
        torch.testing.assert_close(found[:, head], weights @ (f @ value[:, head]))


def test_skyformer_of_all_rows_without_ridge_is_the_gaussian() -> None:
    """m = 2N: not normalised, K_QX K_XX^{-1} K_XK = K_QK, where the iteration is let run to its end."""
    query, key, value = (each[:1, :, :5] for each in tensors())
    part = SkyformerContent(SHAPE, 10, ridge=1e-13)
    part.steps = 40
    torch.testing.assert_close(
        smoothed(part, query, key, value), gaussian(part, query, key) @ value, rtol=0, atol=1e-8
    )


def test_skyformer_as_published() -> None:
    query, key, value = tensors()
    part = SkyformerContent(SHAPE, 6, "segments")
    halves = [each.unflatten(2, (3, 4)).mean(3) for each in (query, key)]
    z = torch.cat(halves, 2)
    among = gaussian(part, z, z) + 0.1 * torch.eye(6)
    root = among.sum(-1).rsqrt().diag_embed()
    inverse = root @ newton_inverse(root @ among @ root, each=True) @ root
    expected = gaussian(part, query, z) @ inverse @ gaussian(part, z, key) @ value
    torch.testing.assert_close(smoothed(part, query, key, value), expected)
    assert not part.log_bandwidth.requires_grad


@pytest.mark.parametrize("landmarks", ["random", "segments"])
def test_nystrom_of_all_rows_without_ridge_is_gaussian_attention(landmarks: str) -> None:
    query, key, value = (each[:, :, :6] for each in tensors())
    for keys, num in ((query, 6), (key, 12)):
        part = NystromContent(SHAPE, num, landmarks, ridge=1e-13)
        kappa = gaussian(part, query, keys)
        expected = kappa @ value / kappa.sum(-1, keepdim=True)
        torch.testing.assert_close(smoothed(part, query, keys, value), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("landmarks", ["segments", "learned"])
def test_nystrom_is_its_formula(landmarks: str) -> None:
    tokens, _, value = tensors()
    part = NystromContent(SHAPE, 4, landmarks, bandwidth=3.0).double()
    z = tokens.unflatten(2, (4, 3)).mean(3) if part.points is None else part.points[None]
    across, among = gaussian(part, tokens, z), gaussian(part, z, z) + 1e-6 * torch.eye(4)
    kappa = across @ torch.linalg.solve(among, across.mT)
    for causal in (False, True) if landmarks == "learned" else (False,):
        left, right, content = part(tokens, tokens)
        seen = kappa.tril() if causal else kappa
        expected = seen @ value / seen.sum(-1, keepdim=True).clamp(min=GAUSSIAN_FLOOR)
        found = kernel_attention(left, right, value, content=content, causal=causal)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def test_more_landmarks_lose_less() -> None:
    tokens, _, value = tensors(48)
    kappa = gaussian(NystromContent(SHAPE), tokens, tokens)
    exact = kappa @ value / kappa.sum(-1, keepdim=True)
    errors = []
    for num in (4, 16, 40, 48):
        part = NystromContent(SHAPE, num).eval()
        errors.append((smoothed(part, tokens, tokens, value) - exact).norm() / exact.norm())
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-4


def test_tokens_that_occur_twice_leave_features_finite_in_float32() -> None:
    tokens = torch.ones(1, 4, 40, 8).requires_grad_()
    left, right, content = NystromContent(SHAPE, 32)(tokens, tokens)
    value = torch.arange(40.0)[:, None].expand(1, 4, 40, 8)
    found = kernel_attention(left, right, value, content=content)
    torch.testing.assert_close(found, torch.full_like(found, 19.5))
    assert torch.autograd.grad(found.sum(), tokens)[0].isfinite().all()


def test_random_rows_are_drawn_anew_in_training_and_the_same_in_evaluation() -> None:
    query, key, value = tensors(40)
    for part in (NystromContent(SHAPE, 5), SkyformerContent(SHAPE, 6)):
        torch.manual_seed(0)
        first, second = (smoothed(part.train(), query, key, value) for _ in range(2))
        assert not torch.allclose(first, second)
        torch.manual_seed(0)
        torch.testing.assert_close(smoothed(part, query, key, value), first)
        before = torch.get_rng_state()
        first, second = (smoothed(part.eval(), query, key, value) for _ in range(2))
        torch.testing.assert_close(second, first, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", PARTS)
def test_padding_takes_part_in_nothing(name: str) -> None:
    """Whatever it holds, and also where a text is shorter than there are landmarks."""
    query, key, value = tensors()
    part = PARTS[name]().double().eval()
    left = name != "linformer"  # whose columns are those of places
    for length in (10, 3):
        real = slice(12 - length, 12) if left else slice(0, length)
        mask = torch.ones(2, 12, dtype=torch.bool)
        mask[0] = False
        mask[0, real] = True
        padded = [each.masked_fill(~mask[:, None, :, None], torch.nan) for each in (query, key, value)]
        found = smoothed(part, padded[0], padded[1], value, mask)[:1, :, real]
        alone = smoothed(part, *(each[:1, :, real] for each in (query, key, value)))
        # Nyströmformer's inverse starts at a size that all rows of the batch have in common.
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-3 if name == "nystromformer" else 1e-9)


@pytest.mark.parametrize("tokens", [1, 3, 11, 13])
@pytest.mark.parametrize("name", PARTS)
def test_texts_of_any_length_are_served_and_have_gradients(name: str, tokens: int) -> None:
    inputs = [each.requires_grad_() for each in tensors(tokens)]
    part = PARTS[name]().double()
    out = smoothed(part, *inputs)
    for grad in torch.autograd.grad(out.square().sum(), inputs):
        assert grad.isfinite().all()
    smoothed(part, *inputs).square().sum().backward()
    for parameter in part.parameters():
        assert not parameter.requires_grad or (parameter.grad is not None and parameter.grad.isfinite().all())


@pytest.mark.parametrize("name", [*PARTS, "nystrom-learned"])
def test_heads_that_remain_are_as_they_were(name: str) -> None:
    made = {**PARTS, "nystrom-learned": lambda: NystromContent(SHAPE, 5, "learned")}
    part = made[name]().double().eval()
    if "nystrom" in name and name != "nystromformer":
        part.bandwidth = torch.tensor([1.5, 2.0, 2.5, 3.0])
    query, key, value = tensors()
    # The start of Nyströmformer's inverse is one for all heads: both are far enough along with more steps.
    part.steps = 30
    found = smoothed(part, query, key, value)[:, 1::2]
    part.keep_heads([1, 3])
    torch.testing.assert_close(smoothed(part, *(each[:, 1::2] for each in (query, key, value))), found)


@pytest.mark.parametrize("name", PARTS)
def test_half_precision_is_kept_and_its_features_are_computed_in_float32(name: str) -> None:
    query, key, _ = (each.bfloat16() for each in tensors())
    part = PARTS[name]().eval()
    with torch.autocast("cpu", torch.bfloat16):
        left, right, _ = part(query, key)
    wide = part(query.float(), key.float())
    assert left.dtype == right.dtype == torch.bfloat16
    for narrow, exact in zip((left, right), wide, strict=False):
        torch.testing.assert_close(narrow, exact.bfloat16(), rtol=0.01, atol=1e-3)


def test_parts_say_whether_they_serve_a_causal_layer() -> None:
    for make in PARTS.values():
        part = make()
        assert (part.causal, part.takes_key_mask) == (False, True)
        assert "whole text" in part.why_not_causal
    for learned in (NystromContent(SHAPE, 4, "learned"), SkyformerContent(SHAPE, 4, "learned")):
        assert (learned.causal, learned.takes_key_mask) == (True, False)
        query, key, _ = tensors()
        whole, first = learned.double()(query, key), learned(query[:, :, :5], key[:, :, :5])
        for features, of_first in zip(whole[:2], first[:2], strict=True):
            torch.testing.assert_close(of_first, features[:, :, :5])


@pytest.mark.parametrize("causal", [False, True])
def test_the_convolution_is_pytorchs_and_decodes_as_it_trains(causal: bool) -> None:
    torch.manual_seed(0)
    layer = KernelSelfAttention(
        32,
        4,
        causal=causal,
        num_key_value_heads=2,
        value_convolution=lambda shape: ValueConvolution(shape, 5),
    ).double()
    plain = KernelSelfAttention(32, 4, causal=causal, num_key_value_heads=2).double()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "convolution" not in k})
    x = points(2, 9, 32)
    value = layer.projections(x)[2].repeat_interleave(2, 1)
    conv = nn.Conv2d(4, 4, (5, 1), padding=(4, 0) if causal else (2, 0), groups=4, bias=False).double()
    conv.weight = layer.value_convolution.weight
    added = layer.projections.merged(conv(value)[:, :, :9])
    torch.testing.assert_close(layer(x), plain(x) + added)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, 6:] = False
    torch.testing.assert_close(layer(x, key_mask=mask)[:, :6], layer(x[:, :6]))
    if causal:
        cache: Any = SimpleNamespace(kept=None)
        cache.length = lambda: 0 if cache.kept is None else cache.kept[0].shape[2]

        def update(*new: Tensor) -> tuple[Tensor, ...]:
            cache.kept = (
                new if cache.kept is None else [torch.cat(t, 2) for t in zip(cache.kept, new, strict=True)]
            )
            return tuple(cache.kept)

        cache.update = update
        steps = [layer(x[:, :4], cache=cache), *(layer(x[:, [n]], cache=cache) for n in range(4, 9))]
        torch.testing.assert_close(torch.cat(steps, 1), layer(x))
    layer.keep_heads([0, 3])
    assert layer.value_convolution.weight.shape == (2, 1, 5, 1)
    assert layer(x).shape == x.shape
    with pytest.raises(InputError, match="document_ids must not be given with value_convolution"):
        layer(x, document_ids=torch.zeros(2, 9, dtype=torch.long))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NystromContent(SHAPE, landmarks="rows"), "landmarks must be one of"),
        (lambda: NystromContent(SHAPE, 0), "num_landmarks must be a whole number of at least 1, got 0"),
        (lambda: NystromContent(SHAPE, ridge=-1.0), "ridge must be a positive finite number"),
        (lambda: NystromContent(SHAPE, bandwidth=0.0), "bandwidth must be positive"),
        (lambda: NystromContent(LayerShape(32, 4, 2)), "num_key_value_heads must be num_heads = 4"),
        (lambda: NystromformerContent(SHAPE, 1.5), "num_landmarks must be a whole number"),
        (lambda: LinformerContent(SHAPE, 8, 9), "num_mixtures must be at most num_tokens = 8, got 9"),
        (lambda: LinformerContent(SHAPE, share="head"), "share must be one of .* did you mean 'heads'"),
        (
            lambda: LinformerContent(SHAPE, 8, 4)(*tensors(9)[:2]),
            "number of tokens must be at most num_tokens = 8",
        ),
        (lambda: ValueConvolution(SHAPE, 4), "size must be odd, got 4"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_variants_are_these_parts() -> None:
    parts = {
        "linear": Features, "performer": Features, "kernelized-rpe": Features, "gka-features": Features,
        "nystromformer": NystromformerContent, "linformer": LinformerContent,
        "skyformer": SkyformerContent, "gka-nystrom": NystromContent,
    }  # fmt: skip
    for name, part in parts.items():
        layer = KernelSelfAttention(64, 4, **PUBLISHED[name]())
        assert type(layer.content) is part
        assert layer.projections.form == ("o" if name.startswith("gka") else "qkvo")
        assert (layer.value_convolution is not None) == (name == "nystromformer")
        layer.keep_heads([0, 2])
        assert str(layer.content)

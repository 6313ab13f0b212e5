"""Random features are unbiased, others are their formula, and none of a key depends on another."""

import copy
import itertools

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nadaraya import InputError, kernel_attention, variants
from nadaraya.attention import related
from nadaraya.attention.features import Features, orthogonal_normal
from nadaraya.attention.projections import LayerShape
from nadaraya.attention.published import PUBLISHED

SHAPE = LayerShape(24, 3, 3)
WIDTH = SHAPE.head_dim
DRAWS = 2000


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(kind: str, *given: int, shape: LayerShape = SHAPE, **options: object) -> Features:
    random = {"seed": 0} if kind.endswith("random") else {}
    return Features(shape, kind, *given, **{**random, **options}).double().eval()


def tensors(tokens: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (points(2, 3, tokens, WIDTH, seed=seed) for seed in range(3))
    return query, key, value


def by_rows(kappa: Tensor, value: Tensor, causal: bool) -> Tensor:
    kappa = kappa.tril() if causal else kappa
    mass = kappa.sum(-1, keepdim=True)
    return kappa @ value / torch.where(mass == 0.0, 1.0, mass)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["elu", "relu", "silu", "taylor"])
def test_features_without_chance_are_their_formula(kind: str, causal: bool) -> None:
    query, key, value = tensors()
    left, right, content = make(kind)(query, key)
    found = kernel_attention(left, right, value, content=content, causal=causal)
    if kind == "taylor":
        s = query @ key.mT * WIDTH**-0.5
        kappa = 1 + s + s.square() / 2
    else:
        phi = {
            "elu": lambda x: torch.where(x > 0, x + 1, x.exp()),
            "relu": lambda x: x.clamp(min=0),
            "silu": lambda x: x * x.sigmoid(),
        }[kind]
        kappa = phi(query) @ phi(key).mT
    if kind == "silu":
        torch.testing.assert_close(found, (kappa.tril() if causal else kappa) @ value)
    else:
        torch.testing.assert_close(found, by_rows(kappa, value, causal))


def kernel_of(kind: str, x: Tensor, y: Tensor) -> Tensor:
    if kind == "positive-random":
        return torch.exp(x @ y.mT)
    return torch.exp(-torch.cdist(x, y).square() / 2)


def estimates(kind: str, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """κ̂(x, y) for each of several draws w (draws, m, d): (draws, n, n)."""
    part = make(kind)
    part.w = w.to(x.dtype)  # one part has all draws: products have an axis of them in front
    if kind == "trigonometric-random":
        part.w = part.w.flatten(0, 1)
        left, right = (part._of_either(each).unflatten(-1, (2, len(w), -1)) for each in (x, y))
        return len(w) * torch.einsum("xtkm,ytkm->kxy", left, right)
    left, right = (part.logarithms(each).exp() for each in (x, y))
    return left @ right.mT / w.shape[1]


@pytest.mark.parametrize("kind", ["positive-random", "gaussian-random", "trigonometric-random"])
def test_random_features_are_unbiased_and_orthogonal_ones_vary_less(kind: str) -> None:
    x, y = (0.25 * points(8, WIDTH, seed=seed) for seed in (3, 4))
    orthogonal = orthogonal_normal(DRAWS * WIDTH, WIDTH, seed=0).unflatten(0, (DRAWS, WIDTH))
    independent = torch.randn(DRAWS, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))
    exact, variances = kernel_of(kind, x, y), []
    for w in (orthogonal, independent):
        found = estimates(kind, x, y, w)
        assert ((found.mean(0) - exact).abs() <= 4 * found.std(0) / DRAWS**0.5).all()
        variances.append(found.var(0).mean())
    assert variances[0] < 0.95 * variances[1]


def test_orthogonal_vectors_are_orthogonal_in_blocks_and_as_long_as_normal_ones() -> None:
    w = orthogonal_normal(20, 8, seed=0)
    for block in (w[:8], w[8:16], w[16:]):
        products = block @ block.mT
        torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-5)
    squares = orthogonal_normal(8000, 8, seed=1).square().sum(-1)
    assert squares.mean() == pytest.approx(8.0, abs=4 * (16 / 8000) ** 0.5)  # χ²_d has variance 2d
    assert torch.equal(w, orthogonal_normal(20, 8, seed=0))
    assert not torch.equal(w, orthogonal_normal(20, 8, seed=1))


@pytest.mark.parametrize("causal", [False, True])
def test_performer_tends_to_softmax_attention(causal: bool) -> None:
    query, key, value = (0.5 * each for each in tensors())
    exact = kernel_attention(query, key, value, causal=causal)
    errors = []
    for num_features in (64, 1024, 16384):
        left, right, content = make("positive-random", num_features)(query, key)
        found = kernel_attention(left, right, value, content=content, causal=causal)
        errors.append((found - exact).norm() / exact.norm())
    assert errors[2] < 0.5 * errors[1] < 0.25 * errors[0]
    assert errors[2] < 0.03


@pytest.mark.parametrize("kind", ["gaussian-random", "trigonometric-random"])
def test_features_of_the_gaussian_tend_to_its_attention(kind: str) -> None:
    query, _, value = tensors()
    part = make(kind, 16384, bandwidth=2.0)
    part.bandwidth = torch.tensor([2.0, 2.5, 3.0])
    left, right, content = part(query, query)
    squares = torch.cdist(query, query).square()
    kappa = torch.exp(-squares / 2 / part.bandwidth.detach()[:, None, None] ** 2)
    found = kernel_attention(left, right, value, content=content)
    exact = by_rows(kappa, value, causal=False)
    assert (found - exact).norm() < 0.1 * exact.norm()
    part.keep_heads([0, 2])
    left, right, content = part(query[:, ::2], query[:, ::2])
    torch.testing.assert_close(kernel_attention(left, right, value[:, ::2], content=content), found[:, ::2])


@pytest.mark.parametrize(
    "kind",
    ["elu", "relu", "silu", "taylor", "positive-random", "gaussian-random", "trigonometric-random"],
)
@pytest.mark.parametrize("unit", [False, True])
def test_features_of_a_token_depend_on_no_other(kind: str, unit: bool) -> None:
    query, key, _ = tensors()
    part = make(kind, unit=unit)
    left, right, content = part(query, key)
    first = part(query[:, :, :5], key[:, :, :5])
    torch.testing.assert_close(first[0], left[:, :, :5])
    torch.testing.assert_close(first[1], right[:, :, :5])
    assert content.normalise == (kind != "silu")
    if unit:
        torch.testing.assert_close(part(3.0 * query, key)[0], left)


@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize("kind", ["positive-random", "gaussian-random"])
def test_positive_features_stay_finite(kind: str, size: float) -> None:
    """At the width of large models, and for keys in the very directions of w, whose features are largest."""
    shape = LayerShape(512, 2, 2)
    part = Features(shape, kind, seed=0)
    query, value = (size * torch.randn(1, 2, 64, 256) for _ in range(2))
    along = part.w[:64].expand(1, 2, -1, -1) * 256**0.25 * size
    for key in (query, along):
        left, right, content = part(query, key)
        found = kernel_attention(left, right, value, content=content, causal=True)
        assert found.isfinite().all()


def test_what_keys_are_divided_by_changes_no_weight() -> None:
    """In float16 all keys' features are divided by one number: attention is the same but for rounding."""
    query, key, value = tensors()
    part = make("gaussian-random", 512)
    (left, right, content), (_, narrow, _) = part(query, key), part(query.half(), key.half())
    large = right > 0.1 * right.mean()
    factor = (narrow.double() / right)[large]
    assert factor.max() < 0.5
    torch.testing.assert_close(factor, factor.mean().expand_as(factor), rtol=0.05, atol=0)
    exact, found = (kernel_attention(left, k, value, content=content) for k in (right, narrow.double()))
    torch.testing.assert_close(found, exact, rtol=0, atol=0.01)


def test_w_is_drawn_anew_after_so_many_batches_and_a_saved_part_goes_on_where_it_was() -> None:
    query, key, _ = tensors(3)
    part = Features(SHAPE, "positive-random", redraw_every=3, seed=5).train()
    seen = []
    for _ in range(8):
        part(query, key)
        seen.append(part.w.clone())
    same = [torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert same == [True, True, False, True, True, False, True]
    torch.testing.assert_close(seen[3], orthogonal_normal(*part.w.shape, 6))
    other = Features(SHAPE, "positive-random", redraw_every=3).train()
    other(query, key)
    other.load_state_dict(part.state_dict())
    for _ in range(3):
        part(query, key)
        other(query, key)
        torch.testing.assert_close(other.w, part.w, rtol=0, atol=0)
    before = part.w.clone()
    copied = copy.deepcopy(part).eval()
    for _ in range(4):
        copied(query, key)
    torch.testing.assert_close(copied.w, before, rtol=0, atol=0)


def test_a_batch_computed_again_in_the_backward_pass_counts_once_and_has_the_same_w() -> None:
    query, key, _ = tensors(3)
    query.requires_grad_()
    grads = []
    for again in (False, True):
        part = Features(SHAPE, "positive-random", redraw_every=1, seed=0).double().train()
        part(query, key)

        def loss(part: Features = part) -> Tensor:
            return part(query, key)[1].sum() + part(query, key)[0].square().sum()

        total = checkpoint(loss, use_reentrant=False) if again else loss()
        grads.append(torch.autograd.grad(total, query)[0])
        assert part.drawn.tolist() == [0, 3]
    torch.testing.assert_close(grads[1], grads[0])


def test_layers_differ_and_a_seed_makes_the_same() -> None:
    torch.manual_seed(0)
    first, second = (Features(SHAPE, "positive-random") for _ in range(2))
    assert first.w.shape == (int(WIDTH * torch.log(torch.tensor(float(WIDTH)))), WIDTH)
    assert not torch.equal(first.w, second.w)
    torch.manual_seed(0)
    assert torch.equal(Features(SHAPE, "positive-random").w, first.w)
    with torch.device("meta"):
        assert Features(SHAPE, "gaussian-random").w.is_meta


def test_kernelized_attention_without_a_table_is_performer_of_unit_vectors() -> None:
    query, key, value = tensors()
    options = PUBLISHED["kernelized-rpe"](num_tokens=12)
    part = options["content"](SHAPE, seed=0).double().eval()
    table = options["position"](SHAPE).double()
    assert table.logits.shape == (3, 23)
    unit = (torch.nn.functional.normalize(x, dim=-1) for x in (query, key))
    plain = make("positive-random", scale=1.0)(*unit)
    left, right, content = part(query, key)
    found = kernel_attention(left, right, value, content=content, position=table)
    torch.testing.assert_close(found, by_rows(plain[0] @ plain[1].mT, value, causal=False))
    torch.nn.init.normal_(table.logits)
    found = kernel_attention(left, right, value, content=content, position=table)
    lags = torch.arange(12)[:, None] - torch.arange(12)
    kappa = left @ right.mT * table.logits[:, lags + 11].exp()
    torch.testing.assert_close(found, by_rows(kappa, value, causal=False))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("elo", {}, "kind must be one of .* did you mean 'elu'"),
        ("elu", {"num_features": 8}, "num_features must not be given with kind='elu'"),
        ("relu", {"redraw_every": 7}, "redraw_every must not be given with kind='relu'"),
        ("taylor", {"bandwidth": 1.0}, "bandwidth must not be given with kind='taylor'"),
        ("gaussian-random", {"scale": 1.0}, "scale must not be given with kind='gaussian-random'"),
        ("silu", {"normalise": True}, "normalise must be False for 'silu'"),
        ("positive-random", {"num_features": 0}, "num_features must be a whole number of at least 1"),
        ("positive-random", {"scale": 0.0}, "scale must be a positive finite number, got 0.0"),
        ("gaussian-random", {"bandwidth": -1.0}, "bandwidth must be positive"),
    ],
)
def test_options_that_a_kind_does_not_have_are_refused(kind: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Features(SHAPE, kind, **options)


def test_a_bandwidth_per_head_needs_keys_per_head() -> None:
    with pytest.raises(InputError, match="num_key_value_heads must be num_heads"):
        Features(LayerShape(24, 3, 1), "gaussian-random")
    left, right, _ = make("elu", shape=LayerShape(24, 3, 1))(points(1, 3, 4, 8), points(1, 1, 4, 8))
    assert (left.shape[1], right.shape[1]) == (3, 1)


def test_variants_of_features_have_the_options_that_they_name() -> None:
    assert variants.names()
    assert related.__doc__
    silu = PUBLISHED["linear"]("silu")
    assert silu["eps"] == 0.0
    assert PUBLISHED["linear"]()["eps"] == 1e-6
    assert PUBLISHED["gka-features"](num_features=7)["content"](SHAPE).w.shape == (7, WIDTH)
    assert PUBLISHED["performer"](num_features=7)["content"](SHAPE).kind == "positive-random"
    for name, kind in (("linear", "positive-random"), ("gka-features", "elu")):
        with pytest.raises(InputError, match="features must be one of"):
            PUBLISHED[name](features=kind)

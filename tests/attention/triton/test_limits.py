"""Numbers and memory at their limits: bandwidths, distances, scales, head widths, layouts, no tokens."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from grids import covering
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.kernels import Gaussian

Agreement = Callable[..., dict[str, Tensor]]
TOKENS = 300 if os.environ.get("NADARAYA_TEST_DEVICE") == "cuda" else 45
pytestmark = pytest.mark.usefixtures("usual_tiles")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def three(tokens: int = 40, width: int = 16) -> list[Tensor]:
    return [normal(1, 2, tokens, width) for _ in range(3)]


def options_of(similarity: str, **options: Any) -> dict[str, Any]:
    content = {"content": Gaussian(torch.tensor([2.0, 5.0]))} if similarity == "gaussian" else {}
    return {**content, **options}


@pytest.mark.parametrize("similarity", ["dot", "gaussian"])
def test_keys_that_are_the_values_have_one_gradient(assert_agreement: Agreement, similarity: str) -> None:
    query, x, _ = three(width=24)
    options = options_of(similarity, causal=True, position=normal(2, 40))
    actual = assert_agreement([query, x, x], options)
    apart = assert_agreement([query, x, x.clone()], options)
    torch.testing.assert_close(actual["key"], apart["key"] + apart["value"])


@pytest.mark.parametrize(
    ("bandwidth", "same", "eps"),
    covering([1e-30, 1e-3, 1e30], ["query and key", "all"], [0.0, 0.1], whole=False),
)
def test_extreme_bandwidths_keep_to_the_definition(
    assert_agreement: Agreement, bandwidth: float, eps: float, same: str
) -> None:
    x, value = normal(1, 1, 20, 16), normal(1, 1, 20, 16)
    tensors = [x, x, value] if same == "query and key" else [x, x, x]
    actual = assert_agreement(tensors, {"content": Gaussian(bandwidth), "eps": eps})
    # Far below every distance each point keeps its own value; far above, all take the mean.
    mean = tensors[2].mean(2, keepdim=True).expand_as(value)
    limit = tensors[2] / (1 + eps) if bandwidth < 1 else mean * 20 / (20 + eps)
    torch.testing.assert_close(actual["output"], limit, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bandwidth", [1e-30, 1e-3])
@pytest.mark.parametrize("same", ["query and key", "all"])
def test_far_below_every_distance_leave_one_out_takes_the_nearest(
    outcome: Callable[..., dict[str, Tensor]], bandwidth: float, same: str
) -> None:
    x, value = normal(1, 1, 20, 16), normal(1, 1, 20, 16)
    tensors = [x, x, value] if same == "query and key" else [x, x, x]
    options = {"content": Gaussian(torch.tensor([bandwidth])), "exclude_self": True}
    actual = outcome(tensors, options, "triton", torch.float32)
    distances = torch.cdist(x[0, 0], x[0, 0]).fill_diagonal_(torch.inf)
    torch.testing.assert_close(actual["output"], tensors[2][:, :, distances.argmin(1)], rtol=1e-4, atol=1e-5)
    # Logits this large have no digits left behind the point: of the gradients only that they are numbers.
    # What rounding leaves of the bandwidth's, over σ³, is none.
    assert all(actual[name].isfinite().all() for name in actual if name != "bandwidth")


@pytest.mark.parametrize("same", ["nothing", "query and key", "all"])
def test_far_from_the_origin_the_gaussian_keeps_its_digits(assert_agreement: Agreement, same: str) -> None:
    query, key, value = (t + 1000.0 for t in three())
    tensors = {
        "nothing": [query, key, value - 1000.0],
        "query and key": [query, query, value - 1000.0],
        "all": [query, query, query],
    }[same]
    options = {"content": Gaussian(torch.tensor([2.0, 5.0])), "causal": True}
    assert_agreement(tensors, options)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "heads after tokens": lambda: normal(1, 40, 2, 16).transpose(1, 2),
    "features first": lambda: normal(1, 2, 16, 40).transpose(2, 3),
    "a slice of wider rows": lambda: normal(1, 2, 40, 50)[..., 3:19],
    "every second token": lambda: normal(1, 2, 80, 16)[:, :, ::2],
    "every second feature": lambda: normal(1, 2, 40, 32)[..., ::2],
    "one row repeated": lambda: normal(1, 2, 1, 16).expand(1, 2, 40, 16),
    "one column repeated": lambda: normal(1, 2, 40, 1).expand(1, 2, 40, 16),
    "one head repeated": lambda: normal(1, 1, 40, 16).expand(1, 2, 40, 16),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_in_memory_does_not_matter(assert_agreement: Agreement, layout: str) -> None:
    tensors = [LAYOUTS[layout]() for _ in range(3)]
    assert_agreement(tensors, {"position": normal(2, 40), "causal": True})
    one = tensors[0]
    assert_agreement([one, one, one], {"content": Gaussian(torch.tensor([2.0, 5.0]))})


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "width"), [(0, 5, 16), (5, 0, 16), (0, 0, 16), (5, 5, 0)]
)
def test_without_tokens_or_features_nothing_goes_wrong(
    assert_agreement: Agreement, num_queries: int, num_keys: int, width: int
) -> None:
    tensors = [normal(1, 2, num_queries, width), normal(1, 2, num_keys, width), normal(1, 2, num_keys, 3)]
    assert_agreement(tensors, {"causal": True})


@pytest.mark.parametrize("similarity", ["dot", "gaussian"])
def test_eps_sends_gradients_through_the_mass_alone(assert_agreement: Agreement, similarity: str) -> None:
    query, key, value = three()
    constant = torch.ones_like(value)
    # Equal values leave the softmax nothing to choose: what is left is Z / (Z + ε).
    options = options_of(similarity, position=normal(2, 40) - 3.0, eps=0.5)
    actual = assert_agreement([query, key, constant], options)
    assert all(actual[name].abs().max() > 1e-4 for name in ("query", "key", "position"))


@pytest.mark.parametrize("scale", [0.0, -2.0, 100.0])
def test_any_scale(assert_agreement: Agreement, scale: float) -> None:
    tensors = three()
    largest = abs(scale) * (tensors[0] @ tensors[1].mT).abs().max().item()
    assert_agreement(tensors, {"content": scale, "causal": True}, largest_logit=largest)


def test_rows_whose_every_logit_is_far_below_zero_are_still_averages(assert_agreement: Agreement) -> None:
    tensors = [torch.zeros(1, 1, 40, 16), torch.zeros(1, 1, 40, 16), normal(1, 1, 40, 16)]
    table = torch.full((1, 40), -1000.0)
    actual = assert_agreement(tensors, {"position": table}, largest_logit=1000.0)
    torch.testing.assert_close(actual["output"], tensors[2].mean(2, keepdim=True).expand(1, 1, 40, 16))


@pytest.mark.parametrize(("width", "value_width"), [(1, 1), (3, 9), (16, 200), (256, 256)])
def test_narrow_and_wide_heads(assert_agreement: Agreement, width: int, value_width: int) -> None:
    tensors = [normal(1, 2, 40, width), normal(1, 2, 40, width), normal(1, 2, 40, value_width)]
    assert_agreement(tensors, {"position": normal(2, 40), "causal": True})


@pytest.mark.parametrize("same", [False, True])
def test_runs_are_bit_identical(outcome: Callable[..., dict[str, Tensor]], same: bool) -> None:
    if same:
        x = normal(2, 1, TOKENS, 16)
        call = [x, x, x], {"content": Gaussian(torch.tensor([2.0])), "causal": True}
    else:
        call = [normal(2, 1, TOKENS, 16) for _ in range(3)], {"position": normal(1, TOKENS), "causal": True}
    first, second = (outcome(*call, "triton", torch.float32) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("exclude_self", [False, True])
def test_close_points_in_few_dimensions_keep_their_distances(
    assert_agreement: Agreement, exclude_self: bool
) -> None:
    """Two clusters and a bandwidth far below their distance: ‖x‖² − 2 x·y + ‖y‖² would have no digits."""
    x = torch.cat((torch.linspace(-100, -90, 30), torch.linspace(90, 100, 30))).view(1, 1, 60, 1)
    options = {"content": Gaussian(torch.tensor([0.2])), "exclude_self": exclude_self}
    assert_agreement([x, x, normal(1, 1, 60, 2)], options, largest_logit=100.0)


def test_a_window_beyond_all_lags_hides_nothing() -> None:
    query, key, value = three()
    for window in (query.shape[2], 2**31 - 1):
        torch.testing.assert_close(
            kernel_attention(query, key, value, window=window, backend="triton"),
            kernel_attention(query, key, value, backend="triton"),
        )


def test_overlapping_rows_are_smoothed_as_copies_are() -> None:
    x = normal(1, 1, 31).unfold(-1, 20, 1)  # (1, 1, 12, 20), every row the last one moved by one place
    options = {"content": Gaussian(3.0), "backend": "triton"}
    expected = x.contiguous()
    torch.testing.assert_close(
        kernel_attention(x, x, x, **options), kernel_attention(expected, expected, expected, **options)
    )


@pytest.mark.parametrize("similarity", ["dot", "gaussian"])
def test_what_stands_in_padded_keys_does_not_matter(similarity: str) -> None:
    query, key, value = three()
    padding = torch.zeros(key.shape[0], key.shape[2], dtype=torch.bool)
    padding[:, 5:9] = True
    options = options_of(similarity, key_mask=~padding, backend="triton")
    expected = kernel_attention(query, key, value, **options)
    for garbage in (1e8, torch.nan):
        spoilt = key.masked_fill(padding[:, None, :, None], garbage)
        torch.testing.assert_close(kernel_attention(query, spoilt, value, **options), expected)


def test_the_newer_setting_of_float32_products_is_respected() -> None:
    query, key, value = three()
    products = torch.backends.cuda.matmul
    if not hasattr(products, "fp32_precision"):
        pytest.skip("this PyTorch has the older setting only")
    before = products.fp32_precision
    try:
        products.fp32_precision = "tf32"
        assert kernel_attention(query, key, value, backend="triton").isfinite().all()
    finally:
        products.fp32_precision = before

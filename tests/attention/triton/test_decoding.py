"""A few queries against many cached keys, split over the keys and without gradients, equal the definition."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from grids import covering
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.kernels import Gaussian

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def assert_agreement(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    exact = {name: o.double() if name in ("position", "key_bias") else o for name, o in options.items()}
    doubles = (t.double() for t in (query, key, value))
    expected = kernel_attention(*doubles, **exact, backend="reference")
    actual = kernel_attention(query, key, value, **options, backend="triton")
    tolerance = TOLERANCE[query.dtype] * max(1.0, value.abs().max().item())
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance)
    return actual


@pytest.mark.parametrize(
    ("similarity", "masks", "exclude_self", "sizes", "logits", "documents"),
    covering(
        ["dot", "gaussian"],
        [(True, None), (True, 30), (False, 30), (False, None)],  # causal, window
        [False, True],
        [(1, 1, 300), (1, 4, 300), (5, 2, 420)],  # queries, heads per key-value head, keys
        [None, (2, 8), (1, 8), (2, 1)],  # items and heads of the logits by key, of 8 heads
        [0, 3, 60],
        whole=False,
    ),
    ids=str,
)
def test_every_option_equals_the_definition(
    similarity: str,
    masks: tuple[bool, int | None],
    exclude_self: bool,
    sizes: tuple[int, int, int],
    logits: tuple[int, int] | None,
    documents: int,
    packed: Callable[[int, int, int], Tensor],
) -> None:
    (causal, window), (num_queries, group, num_keys) = masks, sizes
    options: dict[str, Any] = {"causal": causal, "window": window, "exclude_self": exclude_self}
    if similarity == "gaussian":
        options["content"] = Gaussian(torch.rand(2 * group) * 4 + 2)
    options["position"] = torch.randn(2 * group, num_keys)
    if logits is not None:
        items, heads = logits
        options["key_bias"] = torch.randn(items, min(heads, 2 * group), num_keys)
    if documents:
        options["document_ids"] = packed(2, num_keys, documents)
    options["key_mask"] = torch.rand(2, num_keys) >= 0.3
    query = torch.randn(2, 2 * group, num_queries, 24)
    assert_agreement(query, torch.randn(2, 2, num_keys, 24), torch.randn(2, 2, num_keys, 40), **options)


@pytest.mark.parametrize(
    ("dtype", "similarity", "same"),
    covering([torch.float32, torch.float16, torch.bfloat16], ["dot", "gaussian"], [False, True], whole=False),
)
def test_halves_lose_only_what_they_round(dtype: torch.dtype, similarity: str, same: bool) -> None:
    options: dict[str, Any] = {"eps": 0.3, "causal": True, "position": torch.randn(1, 300)}
    if similarity == "gaussian":
        options["content"] = Gaussian(torch.tensor([2.0, 5.0]))
    query, key = torch.randn(1, 2, 1, 16).to(dtype), torch.randn(1, 2, 300, 16).to(dtype)
    value = key if same else torch.randn(1, 2, 300, 16).to(dtype)
    assert assert_agreement(query, key, value, **options).dtype == dtype


def test_a_row_that_sees_nothing_is_zero_and_a_lone_row_keeps_itself() -> None:
    query, key, value = torch.randn(2, 2, 1, 16), *torch.randn(2, 2, 2, 300, 16).unbind(0)
    padding = torch.ones(2, 300, dtype=torch.bool)
    padding[1, -1] = False
    actual = assert_agreement(query, key, value, key_mask=~padding, exclude_self=True)
    assert (actual[0] == 0).all()
    torch.testing.assert_close(actual[1], value[1, :, -1:])


def test_far_from_the_origin_the_gaussian_keeps_its_digits() -> None:
    query, key = torch.randn(1, 2, 1, 16) + 1000.0, torch.randn(1, 2, 300, 16) + 1000.0
    bandwidth = torch.tensor([2.0, 5.0])
    assert_agreement(query, key, torch.randn(1, 2, 300, 16), content=Gaussian(bandwidth))


@pytest.mark.parametrize("layout", ["heads after tokens", "a slice of a longer cache", "one head repeated"])
def test_the_layout_of_the_cache_does_not_matter(layout: str) -> None:
    key, value = {
        "heads after tokens": lambda: torch.randn(2, 1, 300, 2, 16).transpose(2, 3),
        "a slice of a longer cache": lambda: torch.randn(2, 1, 2, 400, 16)[..., 50:350, :],
        "one head repeated": lambda: torch.randn(2, 1, 1, 300, 16).expand(2, 1, 2, 300, 16),
    }[layout]().unbind(0)
    assert_agreement(torch.randn(1, 2, 1, 16), key, value, causal=True)


def test_one_query_after_the_other_gives_the_rows_of_one_causal_call() -> None:
    query, key, value = torch.randn(3, 1, 2, 40, 16).unbind(0)
    table = torch.randn(2, 40)
    whole = kernel_attention(query, key, value, position=table, causal=True, backend="triton")
    for last in itertools.chain(range(1, 6), (20, 40)):
        row = kernel_attention(
            query[:, :, last - 1 : last], key[:, :, :last], value[:, :, :last], position=table[:, :last],
            causal=True, backend="triton",
        )  # fmt: skip
        torch.testing.assert_close(row, whole[:, :, last - 1 : last])

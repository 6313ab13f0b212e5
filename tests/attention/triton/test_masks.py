"""Masks at their limits: rows that see nothing, rows left alone, forbidden lags; one tensor under each."""

import itertools
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
pytestmark = pytest.mark.usefixtures("tiles")
TILES = ["16x32", "32x16", *(["chosen"] if os.environ.get("NADARAYA_TEST_DEVICE") == "cuda" else [])]

MASKS = [
    {"causal": causal, "window": window, "exclude_self": exclude_self}
    for causal, window, exclude_self in itertools.product([False, True], [None, 11], [False, True])
]


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


@pytest.mark.parametrize(
    ("tiles", "similarity", "eps"),
    covering(TILES, ["dot", "gaussian"], [0.0, 0.3], whole=False),
    indirect=["tiles"],
)
def test_rows_that_see_nothing_are_zero_and_send_no_gradient(
    assert_agreement: Agreement, similarity: str, eps: float
) -> None:
    tensors = [normal(1, 2, 50, 16), *three(33)[1:]]
    options = options_of(similarity, causal=True, eps=eps, position=normal(2, 50))
    actual = assert_agreement(tensors, options)
    # Aligned at the ends, the first 17 queries stand before the first key.
    assert (actual["output"][:, :, :17] == 0).all()
    assert (actual["query"][:, :, :17] == 0).all()
    assert actual["query"][:, :, 18:].any()


@pytest.mark.parametrize(
    ("tiles", "similarity", "exclude_self"),
    covering(TILES, ["dot", "gaussian"], [False, True], whole=False),
    indirect=["tiles"],
)
def test_an_item_that_is_all_padding_gives_zeros(
    assert_agreement: Agreement, similarity: str, exclude_self: bool
) -> None:
    tensors = [normal(2, 1, 40, 16) for _ in range(3)]
    padding = torch.zeros(2, 40, dtype=torch.bool)
    padding[0] = True
    padding[1, :7] = padding[1, 33:] = True
    options: dict[str, Any] = {"key_mask": ~padding, "exclude_self": exclude_self}
    if similarity == "gaussian":
        options["content"] = Gaussian(torch.tensor([2.0]))
    actual = assert_agreement(tensors, {**options, "position": normal(1, 40)})
    assert (actual["output"][0] == 0).all()
    assert all((actual[name][0] == 0).all() for name in ("query", "key", "value"))


def test_a_table_that_forbids_lags_equals_a_window(assert_agreement: Agreement) -> None:
    tensors = three()
    table = torch.zeros(2, 79)
    table[:, :35] = table[:, 44:] = -torch.inf
    actual = assert_agreement(tensors, {"position": table})
    by_window = kernel_attention(*tensors, window=5, backend="triton")
    torch.testing.assert_close(actual["output"], by_window)
    assert (actual["position"][:, :35] == 0).all()


@pytest.mark.parametrize("exclude_self", [False, True])
def test_a_table_that_forbids_everything_gives_zeros(assert_agreement: Agreement, exclude_self: bool) -> None:
    table = normal(2, 40)
    table[1] = -torch.inf
    actual = assert_agreement(three(), {"position": table, "exclude_self": exclude_self, "causal": True})
    assert (actual["output"][:, 1] == 0).all()


@pytest.mark.parametrize(
    ("tiles", "reason", "similarity", "eps"),
    covering(
        TILES,
        ["first of causal", "window of one", "padding", "table"],
        ["dot", "gaussian"],
        [0.0, 0.3],
        whole=False,
    ),
    indirect=["tiles"],
)
def test_rows_that_leave_one_out_leaves_alone_keep_themselves(
    assert_agreement: Agreement, similarity: str, eps: float, reason: str
) -> None:
    tensors = three()
    options: dict[str, Any] = options_of(similarity, exclude_self=True, eps=eps)
    lonely = slice(None)
    if reason == "first of causal":
        options["causal"] = True
        lonely = slice(0, 1)
    elif reason == "window of one":
        options["window"] = 1
    elif reason == "padding":
        options["key_mask"] = torch.arange(40)[None] == 20
        lonely = slice(20, 21)
    else:
        options["position"] = torch.tensor([[0.5] + [-torch.inf] * 39])
    actual = assert_agreement(tensors, options)
    own = tensors[2][:, :, lonely]
    if eps == 0.0:
        torch.testing.assert_close(actual["output"][:, :, lonely], own)
        # A weight of 1 whatever the query: only rounding is left.
        assert actual["query"][:, :, lonely].abs().max() < 1e-5
    else:
        assert (actual["output"][:, :, lonely].abs() < own.abs()).all()
        assert actual["query"][:, :, lonely].abs().max() > 1e-3


def test_a_window_of_one_gives_the_values_back(assert_agreement: Agreement) -> None:
    tensors = three()
    actual = assert_agreement(tensors, {"window": 1, "position": normal(2, 40)})
    torch.testing.assert_close(actual["output"], tensors[2])


@pytest.mark.parametrize(
    ("tiles", "similarity", "exclude_self"),
    covering(TILES, ["dot", "gaussian"], [False, True], whole=False),
    indirect=["tiles"],
)
def test_keys_whose_logit_is_minus_infinity_are_hidden_as_padding_is(
    assert_agreement: Agreement, similarity: str, exclude_self: bool
) -> None:
    tensors = three()
    padding = torch.zeros(1, 40, dtype=torch.bool)
    padding[:, 5:9] = padding[:, 33:] = True
    options = options_of(similarity, exclude_self=exclude_self, causal=True)
    hidden = torch.where(padding[:, None], -torch.inf, normal(1, 2, 40))
    actual = assert_agreement(tensors, {**options, "key_bias": hidden})
    padded = {"key_bias": hidden.nan_to_num(neginf=0.0), "key_mask": ~padding}
    expected = assert_agreement(tensors, {**options, **padded})
    for name, want in expected.items():
        torch.testing.assert_close(actual[name], want, rtol=1e-5, atol=1e-5)
    assert (actual["key_bias"].mT[:, padding[0]] == 0).all()


@pytest.mark.parametrize("similarity", ["dot", "gaussian"])
def test_equal_logits_of_all_keys_change_the_mass_alone(similarity: str) -> None:
    query, key, value = three()
    options = options_of(similarity, causal=True, position=normal(2, 40), backend="triton")
    out, lse = kernel_attention(query, key, value, **options, return_lse=True)
    shifted = kernel_attention(
        query, key, value, **options, key_bias=torch.full((1, 1, 40), 30.0), return_lse=True
    )
    torch.testing.assert_close(shifted, (out, lse + 30.0))


@pytest.mark.parametrize(
    ("tiles", "masks", "eps", "dtype"),
    covering(TILES, MASKS, [0.0, 0.3], [torch.float32, torch.bfloat16], whole=False),
    indirect=["tiles"],
    ids=str,
)
def test_one_tensor_smoothed_on_itself_has_one_gradient(
    assert_agreement: Agreement, masks: dict[str, Any], eps: float, dtype: torch.dtype
) -> None:
    x = normal(1, 2, 33, 24, dtype=dtype)
    bandwidth = torch.tensor([2.0, 5.0])
    actual = assert_agreement([x, x, x], {"content": Gaussian(bandwidth), "eps": eps, **masks})
    assert actual.keys() == {"output", "query", "bandwidth"}


def test_one_tensor_over_whole_tiles(assert_agreement: Agreement) -> None:
    x = normal(1, 1, 96, 16)
    for masks in ({"causal": True}, {"causal": True, "window": 40, "exclude_self": True}):
        assert_agreement([x, x, x], {"content": Gaussian(torch.tensor([3.0])), **masks})

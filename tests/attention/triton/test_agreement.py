"""The fused kernels equal the definition in values and all gradients, over samples of all options."""

import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from nadaraya.kernels import Gaussian

ON_GPU = os.environ.get("NADARAYA_TEST_DEVICE") == "cuda"
NUM_CALLS = 240 if ON_GPU else 30
# In the interpreter a few dozen tokens make several tiles of every kind.
OPTIONS: dict[str, list[Any]] = {
    "lengths": (
        [(45, 45), (256, 256), (131, 300), (300, 131), (1, 140), (20, 1)]
        if ON_GPU
        else [(45, 45), (64, 64), (33, 50), (50, 33), (1, 40), (20, 1)]
    ),
    "widths": [(16, 16), (24, 24), (40, 40), (64, 64), (16, 40), (24, 16)],
    "heads": [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2)],  # batch, key-value heads, group
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "tiles": [(16, 32), (32, 16), (16, 16), *([None] if ON_GPU else [])],
    "similarity": ["dot", "gaussian"],
    "table": ["none", "by lag", "signed", "one row", "one signed row"],
    "key_bias": ["none", "none", "each", "one item", "one head", "one row"],
    "documents": [0, 0, 1, 3, 12],
    "padded": [False, True],
    "causal": [False, True],
    "window": [None, None, 3, 20],
    "exclude_self": [False, True],
    "eps": [0.0, 0.0, 0.3],
}
# Offsets of one more and one less than whole tiles put lag 0 at the tiles' edges.
SMALL_OPTIONS: dict[str, list[Any]] = {
    "lengths": [(33, 33), (48, 48), (33, 48), (48, 31), (20, 37)],
    # Every set of masks meets every pair of lengths.
    "causal, exclude_self, window": [
        *((causal, exclude_self, None) for causal in (False, True) for exclude_self in (False, True)),
        (False, False, 20),
        (False, True, 3),
        (True, False, 3),
        (True, True, 20),
    ],
    "widths": [(16, 16), (24, 40), (40, 24)],
    "heads": [(2, 1, 1), (1, 2, 1), (1, 1, 2)],
    "dtype": OPTIONS["dtype"],
    "tiles": OPTIONS["tiles"],
    "similarity": ["dot", "gaussian"],
    "table": ["none", "by lag", "signed", "one row"],
    "key_bias": ["none", "each", "one item", "one head"],
    "documents": [0, 3, 12],
    "padded": [False, True],
    "eps": [0.0, 0.3],
}


def pairwise_calls() -> list[dict[str, Any]]:
    """Every pair of values of any two options at least once, in few calls of small sizes."""
    generator = random.Random(0)
    # A pair is ((option, place of a value), (option, place of a value)).
    places = [[(option, place) for place in range(len(SMALL_OPTIONS[option]))] for option in SMALL_OPTIONS]
    missing = {(a, b) for one, other in combinations(places, 2) for a in one for b in other}
    calls = []
    while missing:
        drawn = [tuple(map(generator.choice, places)) for _ in range(300)]
        best = max(drawn, key=lambda row: len(missing.intersection(combinations(row, 2))))
        missing.difference_update(combinations(best, 2))
        call = {option: SMALL_OPTIONS[option][place] for option, place in best}
        masks = call.pop("causal, exclude_self, window")
        call["causal"], call["exclude_self"], call["window"] = masks
        calls.append(call)
    return calls


def balanced_calls() -> list[dict[str, Any]]:
    """Each value of each option equally often, in combinations drawn at random."""
    generator = random.Random(0)
    columns = []
    for levels in OPTIONS.values():
        column = [levels[i % len(levels)] for i in range(NUM_CALLS)]
        generator.shuffle(column)
        columns.append(column)
    return [dict(zip(OPTIONS, row, strict=True)) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize(
    "call",
    [*pairwise_calls(), *(pytest.param(call, marks=pytest.mark.slow) for call in balanced_calls())],
    ids=lambda call: "-".join(map(str, call.values())),
)
def test_values_and_all_gradients_equal_the_definition(
    assert_agreement: Callable[..., object],
    cut: Callable[[int, int], AbstractContextManager[None]],
    packed: Callable[[int, int, int], Tensor],
    call: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    batch, kv_heads, group = call["heads"]
    heads = kv_heads * group
    num_queries, num_keys = call["lengths"]
    width, value_width = call["widths"]
    length = max(num_queries, num_keys)
    tensors = [
        torch.randn(batch, heads, num_queries, width).to(call["dtype"]),
        torch.randn(batch, kv_heads, num_keys, width).to(call["dtype"]),
        torch.randn(batch, kv_heads, num_keys, value_width).to(call["dtype"]),
    ]
    options = {name: call[name] for name in ("causal", "window", "exclude_self", "eps")}
    if call["similarity"] == "gaussian":
        options["content"] = Gaussian((torch.randn(heads).abs() + 0.5) * width**0.5)
    shapes = {
        "by lag": (heads, length),
        "signed": (heads, 2 * length - 1),
        "one row": (1, length),
        "one signed row": (1, 2 * length - 1),
    }
    if call["table"] in shapes:
        options["position"] = torch.randn(shapes[call["table"]])
    logit_shapes = {
        "each": (batch, heads),
        "one item": (1, heads),
        "one head": (batch, 1),
        "one row": (1, 1),
    }
    if call["key_bias"] in logit_shapes:
        options["key_bias"] = torch.randn(*logit_shapes[call["key_bias"]], num_keys)
    if call["documents"] and num_queries <= num_keys:
        options["document_ids"] = packed(batch, num_keys, call["documents"])
    if call["padded"]:
        options["key_mask"] = torch.rand(batch, num_keys) >= 0.4
    with cut(*call["tiles"]) if call["tiles"] else nullcontext():
        assert_agreement(tensors, options)

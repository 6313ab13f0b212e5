"""Random calls of the operator: the default backend gives the values and gradients of the definition.

`CALLS=20000 pytest tests/fuzz/test_operator.py -k many` makes as many as wanted.
"""

import os
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention import GridLogits, MixedKernels, MixedLogits, reference
from nadaraya.attention.functional import watching_calls
from nadaraya.kernels import Gaussian

SCALES = (None, 0.0, -0.0, -0.5, -3, 1e-30, 1e-45, 1e-310, -1e-310, np.float32(0.3), 4.0, 1e4, -1e4)
BAD = (float("nan"), float("inf"), -float("inf"))
LENGTHS = (1, 2, 3, 5, 8, 17)


@dataclass
class Call:
    """Tensors and options of one call; `leaves` are differentiated, by name."""

    leaves: dict[str, Tensor]
    options: dict[str, Any]
    kind: str = ""  # of position
    same: bool = False  # one tensor is queries, keys and values

    def made(self, leaves: dict[str, Tensor]) -> tuple[list[Tensor], dict[str, Any]]:
        options = dict(self.options)
        options.update({name: leaves[name] for name in ("key_bias", "attn_mask") if name in leaves})
        if "scale" in leaves:
            options["content"] = leaves["scale"]
        if "sigma" in leaves:
            options["content"] = Gaussian(leaves["sigma"])
        if self.kind == "table":
            options["position"] = leaves["table"]
        elif self.kind == "grid":
            options["position"] = GridLogits(leaves["table"], 1)
        elif self.kind:
            mixed = MixedKernels if self.kind == "kernels" else MixedLogits
            options["position"] = mixed(leaves["weights"], leaves["table"], signed=True)
        query = leaves["query"]
        return [query, leaves.get("key", query), leaves.get("value", query)], options


def random_call(seed: int) -> Call:
    chosen, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    often, seldom = (lambda: chosen.random() < 0.5), (lambda: chosen.random() < 0.15)
    dtype = torch.float32 if seldom() else torch.float64

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def features(heads: int, tokens: int, width: int) -> Tensor:
        """As projections give them, heads inside tokens, or heads outside."""
        if often():
            return normal(batch, tokens, heads, width).transpose(1, 2)
        return normal(batch, heads, tokens, width)

    batch, groups, shared = (chosen.randint(1, 2) for _ in range(3))
    heads, width = groups * shared, chosen.choice((1, 3, 8))
    num_queries = 0 if chosen.random() < 0.02 else chosen.choice(LENGTHS)
    num_keys = num_queries if often() else 0 if seldom() else chosen.choice(LENGTHS)
    length = max(num_queries, num_keys)
    leaves = {"query": features(heads, num_queries, width)}
    same = groups == heads and num_queries == num_keys and seldom()
    if not same:
        leaves["key"] = features(groups, num_keys, width)
        leaves["value"] = features(groups, num_keys, chosen.choice((width, 2, 5)))
    options: dict[str, Any] = {
        "causal": often(),
        "window": chosen.choice((None, None, 1, np.int64(3), 6)),
        "exclude_self": often(),
        "eps": chosen.choice((0.0, 0.0, 0.3, np.float32(1e-6))),
    }
    match chosen.choice(("number", "number", "scale", "sigma")):
        case "number":
            options["content"] = chosen.choice(SCALES if dtype == torch.float64 else SCALES[:-2])
        case "scale":
            leaves["scale"] = normal(chosen.choice((1, heads))) * chosen.choice((0.0, 1.0, 1e-30, 100.0))
        case "sigma":
            leaves["sigma"] = normal(heads).abs() + 0.5
    some = chosen.choice((1, heads))
    kind = chosen.choice(("", "", "table", "pairs", "logits", "kernels", "grid"))
    if length and kind == "table":
        leaves["table"] = normal(some, chosen.choice((length, 2 * length - 1)))
    elif length and kind == "pairs":
        leaves["table"], kind = normal(some, num_queries, num_keys), "table"
    elif length and kind in ("logits", "kernels"):
        leaves["weights"] = normal(batch, heads, num_queries, 2).exp()
        leaves["table"] = normal(some, 2, 2 * chosen.choice((1, length)) - 1)
    elif kind == "grid" and num_queries == num_keys and num_queries > 1:
        leaves["table"] = normal(some, 2 * num_queries - 3, 1)
    else:
        kind = ""
    if often():
        options["key_mask"] = torch.rand(batch, num_keys, generator=generator) > 0.4
    if seldom():
        options["attn_mask"] = torch.rand(batch, 1, num_queries, num_keys, generator=generator) < 0.6
    elif seldom():
        leaves["attn_mask"] = normal(1, heads, num_queries, num_keys)
    if seldom():
        leaves["key_bias"] = normal(1, some, num_keys)
    if num_queries <= num_keys and kind != "grid" and chosen.random() < 0.3:
        options["document_ids"] = (torch.rand(batch, num_keys, generator=generator) < 0.3).cumsum(1)
    return Call(leaves, options, kind, same)


def spoilt(call: Call, seed: int) -> tuple[Call, Tensor]:
    """The call with a key or value that is not finite, and which rows, (B, H, Nq), may see it."""
    chosen = random.Random(seed)
    seen: list[Any] = []
    with watching_calls(seen.append), torch.no_grad():
        tensors, options = call.made(call.leaves)
        kernel_attention(*tensors, backend="reference", **options)
    args = seen[0].with_repeated_heads()
    visible = reference.logits(args) != -torch.inf
    place = chosen.randrange(args.key.shape[2])
    name = chosen.choice([name for name in ("key", "value") if name in call.leaves])
    tensor = call.leaves[name].clone()
    tensor[chosen.randrange(len(tensor)), :, place, chosen.randrange(tensor.shape[3])] = chosen.choice(BAD)
    rows = visible[..., place]
    return Call({**call.leaves, name: tensor}, call.options, call.kind), rows


def outcome(call: Call, backend: str, with_lse: bool, rows: Tensor | None = None) -> dict[str, Tensor]:
    """Output, log-sum-exp and all gradients; those of some rows alone."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in call.leaves.items()}
    tensors, options = call.made(leaves)
    found = kernel_attention(*tensors, backend=backend, return_lse=with_lse, **options)
    out, lse = found if with_lse else (found, None)
    rows = torch.ones(out.shape[:3], dtype=torch.bool) if rows is None else rows
    loss = (out * torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).view(out.shape))[rows].sum()
    results = {"out": out.detach()[rows]}
    if lse is not None:
        results["lse"] = lse.detach()[rows]
        loss = loss + (0.3 * lse[rows & (lse > -torch.inf)]).sin().sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    zeros = (torch.zeros_like(t) if g is None else g for g, t in zip(gradients, leaves.values(), strict=True))
    return {**results, **{f"gradient of {name}": g for name, g in zip(leaves, zeros, strict=True)}}


def assert_as_defined(found: dict[str, Tensor], expected: dict[str, Tensor], message: str) -> None:
    for name, want in expected.items():
        finite = want[want.isfinite()]
        size = float(finite.abs().max()) if finite.numel() else 0.0
        exact = want.dtype == torch.float64
        tolerance = (1e-8 if exact else 5e-3) * max(1.0, size)
        torch.testing.assert_close(
            found[name], want, rtol=1e-6 if exact else 5e-3, atol=tolerance, equal_nan=True,
            msg=lambda text, name=name: f"{message}: {name}: {text}",
        )  # fmt: skip


def check(seed: int) -> None:
    """One random call, and the same with a number that is not finite where not all rows see it."""
    call, with_lse = random_call(seed), seed % 3 == 0
    message = f"seed {seed}, {call.options}, {call.kind}"
    expected = outcome(call, "reference", with_lse)
    assert all(t.isfinite().all() for name, t in expected.items() if name != "lse"), message
    assert_as_defined(outcome(call, "auto", with_lse), expected, message)
    if seed % 4 == 0 and not call.same and call.leaves["key"].numel() and call.leaves["value"].numel():
        bad, rows = spoilt(call, seed)
        blind = ~rows
        if rows.any():  # gradients of keys pass through the rows that see it
            for backend in ("auto", "reference"):
                out = outcome(bad, backend, False, blind)["out"]
                assert_as_defined({"out": out}, {"out": outcome(call, backend, False, blind)["out"]}, message)
        else:
            for backend in ("auto", "reference"):
                clean = outcome(call, backend, with_lse)
                assert_as_defined(outcome(bad, backend, with_lse), clean, f"{message}, spoilt, {backend}")


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_calls_are_as_defined(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed)


@pytest.mark.slow
def test_many_random_calls_are_as_defined() -> None:
    for seed in range(200, 200 + int(os.environ.get("CALLS", "3000"))):
        check(seed)

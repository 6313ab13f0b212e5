"""Random calls of what the operator adds to softmax: features, local lines, probes, nearest keys.

Against formulas of all pairs written here. `CALLS=20000 pytest tests/fuzz/test_factored_operator.py -k many`
makes as many as wanted.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from nadaraya import InputError, kernel_attention
from nadaraya.attention import Factored, GridLogits, MixedKernels, MixedLogits, choose_backend
from nadaraya.kernels import (
    KERPLE,
    ALiBi,
    ExponentialDecay,
    FreeTable,
    Gaussian,
    Kernel,
    KernelBank,
    Matern,
    Periodic,
    T5Buckets,
)

BATCH = 60  # calls of one test
LENGTHS = (1, 2, 3, 5, 9, 14)
KERNELS: list[Callable[[int], Kernel]] = [
    lambda heads: ExponentialDecay(4.0),
    lambda heads: KernelBank(heads, 2),
    lambda heads: Periodic(0.5, period=6.0) * Matern(5.0, 2.5),
    lambda heads: 0.5 * Matern(torch.full((heads,), 3.0), 1.5),
    lambda heads: Gaussian(4.0),
    lambda heads: ALiBi(heads),
    lambda heads: KERPLE(heads),
    lambda heads: T5Buckets(heads, 8, 12, bidirectional=True),
    lambda heads: FreeTable(heads, 6, signed=True),
]

SIGNED = lambda heads: KernelBank(heads, 2, signed=True, periodic="cosine")  # noqa: E731


@dataclass
class Call:
    """A call: its tensors by name, of which floating ones are differentiated, and its other options."""

    leaves: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    kind: str = ""  # of position
    of_content: str = ""  # "scale", "sigma" or "sum": what the leaf "content" is
    num_prefix: int = 0  # of a grid

    @property
    def content(self) -> Any:
        match self.of_content:
            case "sigma":
                return Gaussian(self.leaves["content"])
            case "sum":
                return Matern(self.leaves["content"].squeeze(), 1.5) + Gaussian(1.0).double()
            case "scale":
                return self.leaves["content"]
        return self.options["content"]

    @property
    def position(self) -> Any:
        match self.kind:
            case "table":
                return self.leaves["table"]
            case "grid":
                return GridLogits(self.leaves["table"], self.num_prefix)
            case "logits":
                return MixedLogits(self.leaves["weights"], self.leaves["table"])
            case "kernels":
                return MixedKernels(self.leaves["weights"], self.leaves["table"])
        return self.options.get("position")

    def given(self) -> dict[str, Any]:
        names = ("query", "key", "value", "key_bias", "attn_mask", "probe")
        tensors = {name: self.leaves[name] for name in names if name in self.leaves}
        return {**self.options, **tensors, "content": self.content, "position": self.position}

    def differentiated(self) -> dict[str, Tensor]:
        kernel = self.options.get("position")
        return self.leaves | (dict(kernel.named_parameters()) if isinstance(kernel, Kernel) else {})


def random_call(seed: int) -> Call:
    torch.manual_seed(seed)  # of kernels that start at random
    chosen, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    often, seldom = (lambda: chosen.random() < 0.5), (lambda: chosen.random() < 0.15)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    batch, groups, shared, width = (chosen.randint(1, 2) for _ in range(4))
    heads, num_queries = groups * shared, chosen.choice(LENGTHS if chosen.random() < 0.97 else (131, 150))
    num_keys = num_queries if often() else chosen.choice(LENGTHS)
    longest, some = max(num_queries, num_keys), chosen.choice((1, heads))
    call = Call(
        {
            "query": normal(batch, heads, num_queries, width),
            "key": normal(batch, groups, num_keys, width),
            "value": normal(batch, groups, num_keys, chosen.choice((1, 3))),
        },
        {"causal": often(), "exclude_self": chosen.random() < 0.3},
    )
    leaves, options = call.leaves, call.options
    way = chosen.choice(("sums", "sums", "sums", "line", "probe", "nearest", "line of nearest"))
    if way == "sums" or (way in ("line", "probe") and seldom()):
        normalise = way != "sums" or chosen.random() < 0.7
        floor = 0.3 if normalise and way == "sums" and chosen.random() < 0.3 else None
        options["content"] = Factored(normalise, floor)
        if normalise and floor is None:
            leaves.update({name: leaves[name].abs() + 0.05 for name in ("query", "key")})
    else:
        call.of_content = chosen.choice(("", "scale", "sigma", "sum"))
        if call.of_content:
            size = normal(some)
            leaves["content"] = size if call.of_content == "scale" else size.abs() + 0.7
        else:
            ties = "nearest" in way  # of which any may be kept
            options["content"] = chosen.choice((None, 0.3, -0.6, *(() if ties else (0.0,))))
    if way == "probe":
        leaves["probe"] = normal(batch, heads, num_queries, width)
    if "line" in way:
        options.update(degree=1, ridge=chosen.choice((1e-3, 0.1, 2.0)))
    if "nearest" in way:
        options["nearest"] = chosen.choice((1, 2, 3, 7, 200))
    elif way == "sums" and often():
        options["eps"] = 0.3
    kind = chosen.choice(("", "kernel", "kernel", "table", "grid", "logits", "kernels"))
    if kind == "kernel":
        signed = getattr(options.get("content"), "normalise", True) is False and often()
        options["position"] = (SIGNED if signed else chosen.choice(KERNELS))(heads).double()
    elif kind == "table":
        leaves["table"], call.kind = normal(some, chosen.choice((longest, 2 * longest - 1))), kind
    elif kind == "grid" and num_queries == num_keys:
        call.num_prefix = chosen.choice([n for n in (0, 1, 2) if n < num_keys])
        patches = num_keys - call.num_prefix
        rows = chosen.choice([n for n in range(1, patches + 1) if patches % n == 0])
        leaves["table"], call.kind = normal(some, 2 * rows - 1, 2 * (patches // rows) - 1), kind
    elif kind in ("logits", "kernels"):
        leaves["weights"] = normal(batch, heads, num_queries, 2).abs() + 0.1
        leaves["table"], call.kind = (
            normal(some, 2, longest if kind == "kernels" else chosen.choice((1, longest))),
            kind,
        )
    if often():
        options["key_mask"] = torch.rand(batch, num_keys, generator=generator) > 0.3
    if chosen.random() < 0.3:
        size = 30.0 if seldom() and way == "sums" and getattr(options["content"], "floor", 1) is None else 1.0
        size = size if getattr(options.get("content"), "normalise", False) else 1.0
        leaves["key_bias"] = size * normal(chosen.choice((1, batch)), some, num_keys)
    if seldom():
        options["attn_mask"] = torch.rand(batch, 1, num_queries, num_keys, generator=generator) < 0.7
    elif seldom():
        leaves["attn_mask"] = normal(1, heads, num_queries, num_keys)
    if seldom():
        options["window"] = chosen.choice((1, 3, 6))
    if num_queries <= num_keys and call.kind != "grid" and chosen.random() < 0.3:
        options["document_ids"] = (torch.rand(batch, num_keys, generator=generator) < 0.2).cumsum(1)
    for leaf in call.differentiated().values():
        leaf.requires_grad_()
    return call


def by_pairs(call: Call) -> tuple[Tensor, Tensor]:
    """Output and log Σ_j κ(i,j), with every pair written out."""
    leaves, options = call.leaves, call.options
    query, heads = leaves["query"], leaves["query"].shape[1]
    key, value = (
        leaves[name].repeat_interleave(heads // leaves[name].shape[1], 1) for name in ("key", "value")
    )
    num_queries, num_keys = query.shape[2], key.shape[2]
    longest = max(num_queries, num_keys)
    lags = torch.arange(num_queries)[:, None] + num_keys - num_queries - torch.arange(num_keys)
    factored = options.get("content") if isinstance(options.get("content"), Factored) else None
    products, log = torch.ones(()), torch.zeros(len(query), heads, num_queries, num_keys, dtype=torch.float64)
    if factored is not None:
        products = query @ key.mT
    elif call.of_content in ("sigma", "sum"):
        apart = query[:, :, :, None] - key[:, :, None]
        near = apart.square().sum(-1)
        size = leaves["content"].view(-1, 1, 1)
        if call.of_content == "sigma":
            log = log - near / (2 * size**2)
        else:
            distance = 3**0.5 * torch.where(near > 0, near, 1.0).sqrt() * (near > 0) / size
            log = log + ((1 + distance) * torch.exp(-distance) + torch.exp(-near / 2)).log()
    else:
        content = leaves["content"].view(-1, 1, 1) if call.of_content else options["content"]
        log = log + query @ key.mT * (query.shape[3] ** -0.5 if content is None else content)
    table, kernel = leaves.get("table"), options.get("position")
    if kernel is not None:
        by_lag = torch.arange(1 - longest, longest).double()
        if factored is not None:
            products = products * torch.atleast_2d(kernel(by_lag))[:, lags + longest - 1]
        else:
            log = log + torch.atleast_2d(kernel.log(by_lag))[:, lags + longest - 1]
    elif call.kind == "table":
        assert table is not None
        log = log + table[:, lags.abs() if table.shape[1] == longest else lags + longest - 1]
    elif call.kind == "grid":
        assert table is not None
        rows, columns = ((size + 1) // 2 for size in table.shape[1:])
        y, x = torch.arange(rows * columns) // columns, torch.arange(rows * columns) % columns
        pairs = table[:, y[:, None] - y + rows - 1, x[:, None] - x + columns - 1]
        log = log + torch.nn.functional.pad(pairs, (call.num_prefix, 0, call.num_prefix, 0))
    elif call.kind:
        assert table is not None
        extent = table.shape[-1]
        by_lag = (table.exp() if call.kind == "kernels" else table)[..., lags.abs().clamp(max=extent - 1)]
        by_lag = by_lag * (lags.abs() < extent)
        mixed = (leaves["weights"].permute(0, 1, 3, 2)[..., None] * by_lag).sum(2)
        log = log + (mixed.log() if call.kind == "kernels" else mixed)
    if "key_bias" in leaves:
        log = log + leaves["key_bias"][:, :, None]
    if "attn_mask" in leaves:
        log = log + leaves["attn_mask"]
    seen = torch.ones_like(log, dtype=torch.bool)
    if options["causal"]:
        seen = seen & (lags >= 0)
    if "window" in options:
        seen = seen & (lags.abs() < options["window"])
    if "key_mask" in options:
        seen = seen & options["key_mask"][:, None, None]
    if "attn_mask" in options:
        seen = seen & options["attn_mask"]
    if (ids := options.get("document_ids")) is not None:
        seen = seen & (ids[:, num_keys - num_queries :, None] == ids[:, None])[:, None]
    if options["exclude_self"]:
        others = seen & (lags != 0)
        seen = torch.where(others.any(-1, keepdim=True), others, seen)
    if options.get("nearest", num_keys) < num_keys:
        ranks = log.masked_fill(~seen, -torch.inf).argsort(-1, descending=True).argsort(-1)
        seen = seen & (ranks < options["nearest"])
    log = log.masked_fill(~seen, -torch.inf)
    top = log.detach().amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)
    kappa = products * torch.exp(log - top)
    mass = kappa.sum(-1, keepdim=True)
    lse = torch.where(mass > 0, mass.clamp(min=1e-300).log() + top, -torch.inf)[..., 0]
    if factored is not None and not factored.normalise:
        return (kappa * top.exp()) @ value, lse
    below = mass + options.get("eps", 0.0) * torch.exp(-top)
    if factored is not None and factored.floor is not None:
        below = torch.maximum(below, factored.floor * torch.exp(-top))
    weights = kappa / torch.where(below == 0, 1.0, below)
    mean = weights @ value
    if "probe" not in leaves and not options.get("degree"):
        return mean, lse
    centre = weights @ key
    apart = (key[:, :, None] - centre[:, :, :, None]) * seen.any(-1)[..., None, None]
    covariance = torch.einsum("bhij,bhijd,bhje->bhide", weights, apart, value)
    if "probe" in leaves:
        return mean - torch.einsum("bhid,bhide->bhie", leaves["probe"], covariance), lse
    spread = torch.einsum("bhij,bhijd,bhijc->bhidc", weights, apart, apart)
    variance = spread.diagonal(dim1=-2, dim2=-1).mean(-1)
    lone = (seen.sum(-1) < 2) | (variance.detach() < 1e-20)
    ridge = torch.where(lone, 1.0, options["ridge"] * variance.detach())[..., None, None]
    spread = spread * ~lone[..., None, None] + ridge * torch.eye(key.shape[-1], dtype=torch.float64)
    slope = torch.linalg.solve(spread, covariance * ~lone[..., None, None])
    return mean + torch.einsum("bhid,bhide->bhie", query - centre, slope), lse


def check(seed: int) -> int:
    """One random call by all backends that can do it; returns how many."""
    call = random_call(seed)
    message = f"seed {seed}: {call.options}, {call.kind}, {list(call.leaves)}"
    expected, lse = by_pairs(call)
    factored = isinstance(call.options.get("content"), Factored)
    signed = factored and (not call.options["content"].normalise or call.options["content"].floor is not None)
    with_lse = seed % 3 == 0 and not signed
    leaves = list(call.differentiated().values())

    def gradients(out: Tensor, lse: Tensor | None) -> list[Tensor]:
        loss = (out * torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).view(out.shape)).sum()
        if lse is not None:
            loss = loss + (0.3 * lse[lse > -torch.inf]).sin().sum()
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for g, t in zip(found, leaves, strict=True)]

    wanted = gradients(expected, lse if with_lse else None)
    largest = max(1.0, *(float(gradient.abs().max()) for gradient in wanted if gradient.numel()))
    size, times = max(1.0, float(expected.detach().abs().max())), 0
    for backend in ("auto", "reference", *(("sdpa", "sum", "chunks", "fft") if factored else ())):
        given = {**call.given(), "backend": backend}
        try:
            choose_backend(**given)
        except InputError as error:
            if "cannot do this call" in str(error):
                continue
            raise
        found = kernel_attention(**given, return_lse=with_lse)
        out, found_lse = found if with_lse else (found, None)
        times += 1
        error = float((out - expected).detach().abs().max())
        assert error <= 1e-8 * size, f"{message}: {backend} is off by {error:.1e}"
        if found_lse is not None:
            torch.testing.assert_close(
                found_lse, lse, rtol=1e-8, atol=1e-8, msg=lambda text: f"{message} {text}"
            )
        for name, got, want in zip(call.differentiated(), gradients(out, found_lse), wanted, strict=True):
            error = float((got - want).abs().max()) if want.numel() else 0.0
            assert error <= 1e-6 * largest, f"{message}: {backend}: gradient of {name} is off by {error:.1e}"
    return times


@pytest.mark.parametrize("first", range(0, 120, BATCH))
def test_random_calls_equal_the_formula(first):
    assert sum(check(seed) for seed in range(first, first + BATCH)) >= 2 * BATCH


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1000 + int(os.environ.get("CALLS", "3000")), BATCH))
def test_many_random_calls_equal_the_formula(first):
    assert sum(check(seed) for seed in range(first, first + BATCH)) >= 2 * BATCH

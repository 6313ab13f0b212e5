"""Content that factorises: every form equals the sum over all pairs, in values and in all gradients."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from grids import covering
from torch import Tensor

from nadaraya import InputError, kernel_attention
from nadaraya.attention import (
    Factored,
    GridLogits,
    MixedKernels,
    MixedLogits,
    choose_backend,
    recurrence,
    toeplitz,
)
from nadaraya.attention.functional import attention_from_state
from nadaraya.kernels import (
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

BACKENDS = ("reference", "sdpa", "sum", "chunks", "fft", "auto")
HEADS = 4
POSITIONS = {
    "none": lambda length: None,
    "decay": lambda length: ExponentialDecay(torch.tensor([3.0, 20.0, 40.0, 9.0])),
    "bank": lambda length: KernelBank(HEADS, 3),
    "cosine": lambda length: KernelBank(HEADS, 2, periodic="cosine") + 20.0 * ExponentialDecay(70.0),
    "waves": lambda length: Periodic(0.5, period=11.0) * Matern(7.0, 2.5),
    "gaussian": lambda length: Gaussian(20.0),
    "alibi": lambda length: ALiBi(HEADS),
    "t5": lambda length: T5Buckets(HEADS, 16, 64, bidirectional=True),
    "free": lambda length: FreeTable(HEADS, 30, signed=True),
    "table": lambda length: torch.randn(HEADS, length),
    "signed table": lambda length: torch.randn(1, 2 * length - 1),
}
WITHOUT_MODES = {"gaussian", "t5", "free", "table", "signed table"}
LENGTHS = ((1, 1), (5, 5), (130, 130), (300, 300), (517, 517), (123, 130), (310, 300), (4, 300))
OPTIONS = (
    "plain", "key mask", "bias", "mask and bias", "large bias", "forget", "documents", "itself",
    "itself masked", "eps", "sums", "sums itself", "floor", "floor and eps",
)  # fmt: skip


@dataclass
class Call:
    """One call: what `kernel_attention` receives, and what is differentiated, by name."""

    tensors: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def leaves(self) -> dict[str, Tensor]:
        leaves = dict(self.tensors)
        position = self.options.get("position")
        if isinstance(position, Kernel):
            leaves.update(position.named_parameters())
        tensors = {"key_bias": self.options.get("key_bias"), "position": position}
        if isinstance(position, GridLogits):
            tensors["position"] = position.logits
        if isinstance(position, (MixedLogits, MixedKernels)):
            profiles = position.profiles if isinstance(position, MixedLogits) else position.log_kernels
            tensors.update(position=profiles, weights=position.weights)
        return leaves | {name: t for name, t in tensors.items() if isinstance(t, Tensor)}

    def by(self, backend: str, **more: Any) -> Any:
        return kernel_attention(**self.tensors, **self.options, backend=backend, **more)

    def to(self, dtype: torch.dtype) -> "Call":
        """The same numbers in another dtype; the position stays what it is."""
        tensors = {name: t.detach().to(dtype) for name, t in self.tensors.items()}
        return Call(tensors, self.options)


def values_by_lag(position: Any, lags: Tensor, length: int) -> Tensor:
    """G at lags (Nq, Nk), broadcastable to (B, H, Nq, Nk)."""
    if position is None:
        return torch.ones(lags.shape, dtype=torch.float64)
    if isinstance(position, Kernel):
        return position(torch.arange(1 - length, length).double())[..., lags + length - 1]
    if isinstance(position, GridLogits):
        rows, columns = ((size + 1) // 2 for size in position.logits.shape[1:])
        first = position.num_prefix
        patches = torch.arange(rows * columns)
        y, x = patches // columns, patches % columns
        down, right = y[:, None] - y + rows - 1, x[:, None] - x + columns - 1
        return torch.nn.functional.pad(position.logits[:, down, right], (first, 0, first, 0)).exp()
    if isinstance(position, (MixedLogits, MixedKernels)):
        of_kernels = isinstance(position, MixedKernels)
        profiles = position.log_kernels if of_kernels else position.profiles
        extent = profiles.shape[-1]
        by_lag = profiles.exp() if of_kernels else profiles
        at = by_lag[..., lags.abs().clamp(max=extent - 1)] * (lags.abs() < extent)
        mixed = torch.einsum("bhim,mij->bhij", position.weights, at)
        return mixed if of_kernels else mixed.exp()
    signed = position.shape[1] != length
    return position.exp()[:, lags + length - 1 if signed else lags.abs()]


def naive(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log Σ_j κ(i,j) and weights, from products of all pairs."""
    query, key, value = (call.tensors[name] for name in ("query", "key", "value"))
    options, shared = call.options, query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    (batch, heads, num_queries), num_keys = query.shape[:3], key.shape[2]
    lags = torch.arange(num_queries)[:, None] + num_keys - num_queries - torch.arange(num_keys)
    seen = torch.ones(batch, heads, num_queries, num_keys, dtype=torch.bool)
    if options.get("causal"):
        seen = seen & (lags >= 0)
    if options.get("window"):
        seen = seen & (lags.abs() < options["window"])
    if "key_mask" in options:
        seen = seen & options["key_mask"][:, None, None]
    if "document_ids" in options:
        ids = options["document_ids"]
        seen = seen & (ids[:, num_keys - num_queries :, None] == ids[:, None])[:, None]
    log = torch.zeros(seen.shape, dtype=torch.float64)
    mask = options.get("attn_mask")
    if mask is not None:
        seen, log = (seen & mask, log) if mask.dtype == torch.bool else (seen, log + mask)
    if options.get("exclude_self"):
        others = seen & (lags != 0)
        seen = torch.where(others.any(-1, keepdim=True), others, seen)
    if "key_bias" in options:
        log = log + options["key_bias"][:, :, None]
    log = log.masked_fill(~seen, -torch.inf)
    shift = log.detach().amax(-1, keepdim=True)
    shift = shift.masked_fill(shift == -torch.inf, 0.0)
    products = query.double() @ key.double().mT
    kappa = products * values_by_lag(options.get("position"), lags, max(num_queries, num_keys))
    kappa = kappa * torch.exp(log - shift)
    mass = kappa.sum(-1, keepdim=True)
    nothing = mass <= 0.0
    lse = (mass.masked_fill(nothing, 1.0).log() + shift).masked_fill(nothing, -torch.inf)[..., 0]
    content = options["content"]
    if not content.normalise:
        weights = kappa * shift.exp()
    else:
        denominator = mass + options["eps"] * torch.exp(-shift) if "eps" in options else mass
        if content.floor is not None:
            denominator = torch.maximum(denominator, content.floor * torch.exp(-shift))
        weights = kappa / torch.where(denominator == 0.0, 1.0, denominator)
    return weights @ value.double(), lse, weights


def made(position: str, causal: bool, lengths: tuple[int, int], option: str, seed: int = 0) -> Call:
    torch.manual_seed(seed)
    num_queries, num_keys = lengths
    longest, groups = max(lengths), random.Random(f"{position}{lengths}{option}{seed}").choice((1, 2, 4))
    normalise = not option.startswith("sums")
    floor = 0.5 if option.startswith("floor") else None
    draw = torch.rand if normalise and floor is None else torch.randn
    tensors = {
        "query": draw(2, HEADS, num_queries, 3, dtype=torch.float64),
        "key": draw(2, groups, num_keys, 3, dtype=torch.float64),
        "value": torch.randn(2, groups, num_keys, 2, dtype=torch.float64),
    }
    torch.manual_seed(seed + 1)  # the same kernel whatever the lengths
    made = POSITIONS[position](longest)
    options: dict[str, Any] = {"content": Factored(normalise, floor), "causal": causal}
    if made is not None:
        options["position"] = made.double()
    if isinstance(made, Kernel):
        with torch.no_grad():
            for parameter in made.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
    mask = torch.rand(2, num_keys) < 0.8
    if option in ("key mask", "mask and bias", "itself masked", "floor and eps"):
        options["key_mask"] = mask
    if option in ("bias", "mask and bias", "floor"):
        options["key_bias"] = 2.0 * torch.randn(2, HEADS, num_keys, dtype=torch.float64)
    if option == "large bias":
        options["key_bias"] = 200.0 * torch.randn(1, HEADS, num_keys, dtype=torch.float64)
    if option == "forget":
        options["key_bias"] = 0.5 * torch.arange(num_keys).double().expand(2, 1, -1).clone()
    if option == "documents" and num_queries <= num_keys:
        options["document_ids"] = (torch.rand(2, num_keys) < 0.02).cumsum(1)
    if "itself" in option:
        options["exclude_self"] = True
    if "eps" in option:
        options["eps"] = 0.3
    for tensor in Call(tensors, options).leaves().values():
        tensor.requires_grad_()
    return Call(tensors, options)


def gradients(call: Call, out: Tensor, lse: Tensor | None = None) -> dict[str, Tensor]:
    """Of a weighted sum of the output and, where something is seen, of the log-sum-exp."""
    weights = torch.linspace(-1.0, 2.0, out.numel(), dtype=out.dtype).view(out.shape)
    loss = (out * weights).sum()
    if lse is not None:
        loss = loss + lse[lse > -torch.inf].sin().sum()
    leaves = call.leaves()
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(t) if g is None else g
        for (name, t), g in zip(leaves.items(), found, strict=True)
    }


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float, note: str) -> None:
    """To a share of the largest number in all of them."""
    largest = max([float(t.detach().abs().max()) for t in expected.values() if t.numel()], default=0.0)
    for name, want in expected.items():
        if want.numel():
            error = float((found[name].double() - want).detach().abs().max())
            assert error <= tolerance * largest, f"{note}: {name} is off by {error / largest:.1e}"


def can(call: Call, backend: str) -> bool:
    if backend in ("reference", "auto"):
        return True
    try:
        choose_backend(**call.tensors, **call.options, backend=backend)
    except InputError as error:
        if "cannot do this call" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize(
    ("position", "causal", "lengths", "option"),
    covering(list(POSITIONS), [False, True], LENGTHS, OPTIONS, whole=False),
)
def test_forms_equal_the_sum_over_pairs(position, causal, lengths, option):
    call = made(position, causal, lengths, option)
    with_lse = call.options["content"].normalise and call.options["content"].floor is None
    expected, lse, _ = naive(call)
    wanted = gradients(call, expected, lse if with_lse else None)
    ran = []
    for backend in BACKENDS:
        if not can(call, backend):
            continue
        ran.append(backend)
        out, found = call.by(backend, return_lse=True)
        assert_close({"out": out}, {"out": expected}, 1e-10, backend)
        if with_lse:
            torch.testing.assert_close(found, lse, rtol=1e-9, atol=1e-9, msg=f"{backend}: lse")
        else:
            out = call.by(backend)
            assert_close({"out": out}, {"out": expected}, 1e-10, backend)
        assert_close(gradients(call, out, found if with_lse else None), wanted, 1e-8, backend)
    assert {"reference", "sdpa"} < set(ran)
    symmetric = position not in ("t5", "free", "signed table")
    assert ("chunks" in ran) == (position not in WITHOUT_MODES and (causal or symmetric))
    assert ("fft" in ran) == (not causal or "key_bias" not in call.options)
    assert ("sum" in ran) == (position == "none" and not causal and "itself" not in option)


@pytest.mark.parametrize("position", ["none", "decay", "waves"])
@pytest.mark.parametrize("option", ["mask and bias", "itself", "sums"])
def test_long_calls_are_computed_piece_by_piece(position, option, monkeypatch):
    """Runs of one chunk and slabs of one feature and channel, as if there were millions of tokens."""
    monkeypatch.setattr(recurrence, "_AT_ONCE", 1)
    monkeypatch.setattr(toeplitz, "_SLAB", 1)
    for causal in (False, True):
        call = made(position, causal, (300, 300), option)
        expected = naive(call)[0]
        wanted = gradients(call, expected)
        for backend in ("chunks", "fft"):
            if can(call, backend):
                out = call.by(backend)
                assert_close({"out": out}, {"out": expected}, 1e-10, backend)
                assert_close(gradients(call, out), wanted, 1e-8, backend)


@pytest.mark.parametrize("num_prefix", [0, 1, 5])
@pytest.mark.parametrize("option", ["plain", "key mask", "bias", "itself", "itself masked", "sums", "floor"])
def test_patches_of_a_grid(num_prefix, option):
    call = made("none", False, (num_prefix + 42,) * 2, option)
    call.options["position"] = GridLogits(
        torch.randn(HEADS, 11, 13, dtype=torch.float64, requires_grad=True), num_prefix
    )
    expected = naive(call)[0]
    wanted = gradients(call, expected)
    assert choose_backend(**call.tensors, **call.options).name == "fft"
    for backend in ("reference", "sdpa", "fft"):
        out = call.by(backend)
        assert_close({"out": out}, {"out": expected}, 1e-10, backend)
        assert_close(gradients(call, out), wanted, 1e-8, backend)
    assert not can(call, "chunks")
    assert not can(call, "sum")


@pytest.mark.parametrize("position", ["none", "decay", "bank", "waves", "gaussian", "signed table"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("option", ["mask and bias", "itself masked", "sums"])
def test_float32_is_exact_to_its_rounding(position, causal, option):
    call = made(position, causal, (300, 300), option)
    expected = naive(call)[0]
    for backend in BACKENDS:
        if can(call, backend):
            out = call.to(torch.float32).by(backend)
            assert out.dtype == torch.float32
            assert_close({"out": out}, {"out": expected}, 2e-5, backend)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("position", ["none", "bank", "gaussian"])
def test_half_precision(dtype, position):
    """Sums in float32: what is lost is the rounding of the features."""
    call = made(position, True, (300, 300), "key mask").to(dtype)
    expected = naive(call)[0]
    for backend in BACKENDS:
        if can(call, backend):
            out = call.by(backend)
            assert out.dtype == dtype
            assert_close({"out": out}, {"out": expected}, 2 * torch.finfo(dtype).eps, backend)


@pytest.mark.parametrize("position", ["none", "decay", "bank"])
@pytest.mark.parametrize("nats", [0.5, 0.05])
def test_gates_that_forget_half_a_nat_a_token(position, nats):
    """In float32, over 600 tokens: by 300 nats, which is more than its range."""
    call = made(position, True, (600, 600), "plain")
    call.options["key_bias"] = (nats * torch.arange(600).double()).expand(1, HEADS, -1)
    expected, lse, _ = naive(call)
    out, found = call.to(torch.float32).by("chunks", return_lse=True)
    assert_close({"out": out}, {"out": expected}, 2e-5, "chunks")
    torch.testing.assert_close(found.double(), lse, rtol=1e-5, atol=1e-5)


def test_a_row_that_sees_nothing_is_zero():
    call = made("bank", True, (130, 130), "plain")
    call.options["key_mask"] = torch.arange(130).expand(2, -1) >= 40
    for backend in ("reference", "sdpa", "chunks", "fft"):
        out, lse = call.by(backend, return_lse=True)
        assert not out[:, :, :40].any()
        assert (lse[:, :, :40] == -torch.inf).all()
        assert all(gradient.isfinite().all() for gradient in gradients(call, out).values())


LONG = (3000, 3000)


@pytest.mark.parametrize("option", ["itself", "sums itself"])
def test_gradients_are_finite_where_only_padding_is_seen(option):
    """Queries before the first key, and a key bias whose exponential has no number."""
    call = made("decay", True, (7, 5), option)
    call.options["key_mask"] = torch.tensor([[False] * 5, [False, False, True, True, False]])
    call.options["key_bias"] = torch.full((1, 1, 5), -800.0, dtype=torch.float64, requires_grad=True)
    expected = naive(call)[0]
    wanted = gradients(call, expected)
    for backend in ("reference", "sdpa", "chunks"):
        out = call.by(backend)
        assert_close({"out": out}, {"out": expected}, 1e-10, backend)
        assert_close(gradients(call, out), wanted, 1e-8, backend)


@pytest.mark.parametrize(
    ("position", "causal", "option", "lengths", "name", "refused"),
    [
        ("none", False, "bias", LONG, "sum", {"chunks": "times as much as 'sum'", "sdpa": "times as much"}),
        ("none", False, "plain", (3, 3000), "sum", {}),
        ("none", False, "itself", LONG, "chunks", {"sum": "see different keys"}),
        (
            "none",
            True,
            "bias",
            LONG,
            "chunks",
            {"sum": "see different keys", "fft": "a key bias may make large"},
        ),
        ("decay", False, "plain", LONG, "chunks", {"sum": "a position depends on the query"}),
        ("gaussian", True, "plain", LONG, "fft", {"chunks": "no finite sum of damped modes"}),
        ("signed table", False, "bias", LONG, "fft", {"chunks": "no finite sum of damped modes"}),
        ("gaussian", True, "bias", LONG, "sdpa", {"fft": "which a key bias may make large"}),
        ("decay", True, "plain", (1, 300), "sdpa", {"chunks": "times as much", "fft": "times as much"}),
    ],
)
def test_the_form_that_is_chosen_and_why(position, causal, option, lengths, name, refused):
    call = made(position, causal, lengths, option)
    choice = choose_backend(**call.tensors, **call.options)
    assert choice.name == name
    assert set(choice.refused) == {"sum", "chunks", "fft", "sdpa"} - {name}
    for other, reason in refused.items():
        assert reason in choice.refused[other]


def test_a_transform_costs_less_than_many_states():
    call = made("none", True, (300, 300), "plain")
    for terms, name in ((1, "chunks"), (12, "fft")):
        call.options["position"] = KernelBank(HEADS, terms).double()
        assert choose_backend(**call.tensors, **call.options).name == name
    assert_close({"out": call.by("chunks")}, {"out": call.by("fft")}, 1e-10, "chunks")


def row_by_row() -> dict[str, Any]:
    torch.manual_seed(1)
    pairs = torch.rand(2, 1, 300, 300) < 0.7
    shares = torch.rand(2, HEADS, 300, 2, dtype=torch.float64) + 0.1
    profiles = torch.randn(2, 300, dtype=torch.float64)
    return {
        "window": {"window": 40},
        "hidden pairs": {"attn_mask": pairs},
        "logits of pairs": {"attn_mask": torch.randn(HEADS, 300, 300, dtype=torch.float64)},
        "mixed logits": {"position": MixedLogits(shares, profiles[:, :50])},
        "mixed kernels": {"position": MixedKernels(shares, profiles)},
    }


@pytest.mark.parametrize("name", row_by_row())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("option", ["plain", "mask and bias", "itself", "sums"])
def test_what_has_no_form_is_computed_row_by_row(name, causal, option):
    call = made("bank", causal, (300, 300), option)
    call.options.update(row_by_row()[name])
    for leaf in call.leaves().values():
        leaf.requires_grad_()
    choice = choose_backend(**call.tensors, **call.options)
    assert choice.name == "sdpa"
    assert set(choice.refused) == {"sum", "chunks", "fft"}
    expected = naive(call)[0]
    wanted = gradients(call, expected)
    for backend in ("reference", "sdpa"):
        out = call.by(backend)
        assert_close({"out": out}, {"out": expected}, 1e-10, backend)
        assert_close(gradients(call, out), wanted, 1e-8, backend)
    for backend in ("sum", "chunks", "fft"):
        with pytest.raises(InputError, match=f"backend '{backend}' cannot do this call: "):
            call.by(backend)


def test_dropout_drops_pairs_and_multiplies_the_others():
    call = made("bank", True, (130, 130), "plain")
    call.tensors["value"] = torch.eye(130, dtype=torch.float64).expand(
        2, call.tensors["key"].shape[1], -1, -1
    )
    call.options["dropout_p"] = 0.4
    assert choose_backend(**call.tensors, **call.options).name == "sdpa"
    weights = naive(call)[2]
    out = call.by("auto")
    dropped = out == 0.0
    torch.testing.assert_close(out, (weights / 0.6).masked_fill(dropped, 0.0))
    share = dropped[weights > 0].double().mean()
    assert abs(share - 0.4) < 0.02


def test_weights_are_those_of_all_pairs():
    call = made("waves", True, (130, 130), "key mask")
    torch.testing.assert_close(call.by("auto", return_weights=True)[1], naive(call)[2])
    with pytest.raises(InputError, match="only the reference returns weights"):
        call.by("chunks", return_weights=True)


def test_negative_features_need_a_floor_or_no_denominator():
    call = made("none", True, (5, 5), "sums")
    for content in (Factored(False), Factored(floor=0.1)):
        call.options["content"] = content
        assert call.by("auto").isfinite().all()
    call.options["content"] = Factored()
    with pytest.raises(InputError, match=r"query must be features of at least 0 .*, got -"):
        call.by("auto")
    call.tensors["query"] = call.tensors["query"].abs()
    with pytest.raises(InputError, match=r"key must be features of at least 0 .*, got -"):
        call.by("auto")


@pytest.mark.parametrize("floor", [0.0, -1.0, float("inf"), float("nan"), "small"])
def test_a_floor_is_positive(floor):
    with pytest.raises(InputError, match="floor must be None or a positive finite number"):
        Factored(floor=floor)
    with pytest.raises(InputError, match="floor must not be given with normalise=False"):
        Factored(normalise=False, floor=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("position", ["none", "waves"])
def test_a_compiled_call_equals_the_call(position):
    call = made(position, True, (200, 200), "key mask")

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = kernel_attention(query, key, value, **call.options, backend=backend)
        assert isinstance(out, Tensor)
        return out

    backend = "chunks" if position == "none" else "fft"  # harmonics are not looked for in a compiled call
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)(**call.tensors)
    eager = attend(**call.tensors)
    torch.testing.assert_close(compiled, eager)
    assert_close(gradients(call, compiled), gradients(call, eager), 1e-12, "compiled")


CONTINUED = ("none", "decay", "bank", "cosine", "waves", "alibi")


@pytest.mark.parametrize("position", CONTINUED)
@pytest.mark.parametrize(
    "option", ["plain", "key mask", "itself", "itself masked", "eps", "sums", "floor and eps"]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_pieces_that_go_on_from_a_state_equal_one_call(position, option, seed):
    call = made(position, True, (300, 300), option, seed)
    mask = call.options.get("key_mask", torch.ones(2, 300, dtype=torch.bool))
    if seed:
        mask = mask & (torch.arange(300) >= torch.tensor([[7], [0]]))
        call.options["key_mask"] = mask
    expected, lse, _ = naive(call)
    generator, state, start, outs, masses = random.Random(seed), None, 0, [], []
    while start < 300:
        stop = min(300, start + generator.choice((1, 1, 2, 17, 127, 128, 129)))
        options = {**call.options, "key_mask": mask[:, start:stop]}
        piece = {name: t[:, :, start:stop] for name, t in call.tensors.items()}
        earlier = mask[:, :start].sum(1)
        out, mass, state = attention_from_state(*piece.values(), state, earlier, **options)
        outs.append(out)
        masses.append(mass)
        start = stop
    out = torch.cat(outs, 2)
    assert_close({"out": out}, {"out": expected}, 1e-10, "pieces")
    assert_close(gradients(call, out), gradients(call, expected), 1e-8, "pieces")
    content = call.options["content"]
    if not content.normalise:
        assert masses[0] is None
    elif content.floor is None:
        torch.testing.assert_close(torch.cat(masses, 2), lse, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("position", CONTINUED)
def test_the_state_does_not_grow(position):
    shapes = set()
    for tokens in (1, 5, 130, 517):
        call = made(position, True, (tokens, tokens), "plain")
        state = attention_from_state(*call.tensors.values(), None, torch.zeros(1), **call.options)[2]
        shapes.add(tuple(state.shape))
    (shape,) = shapes
    kernel = call.options.get("position")
    modes = kernel.modes(torch.float64, 1e-12) if kernel is not None else None
    assert shape == (2, HEADS, 3, modes.num_states if modes else 1, 3)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"causal": False}, "it must be causal"),
        ({"key_bias": torch.zeros(1, 1, 5)}, "without a key bias"),
        ({"position": Gaussian(3.0)}, "no finite sum of damped modes"),
        ({"window": 3}, "window has no form that factorises"),
        ({"content": None}, "its content does not factorise"),
    ],
)
def test_what_has_no_state_is_refused(more, reason):
    features = torch.rand(1, 2, 5, 3)
    options = {"content": Factored(), "causal": True, **more}
    with pytest.raises(InputError, match=f"attention from a state cannot do this call: .*{reason}"):
        attention_from_state(features, features, features, None, torch.zeros(1), **options)


def test_retention():
    """RetNet (Sun et al. 2023), parallel form: (Q Kᵀ ⊙ D) V, D_ij = γ^(i − j) for i ≥ j."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, HEADS, 200, 6, dtype=torch.float64) for _ in range(3))
    gamma = 1 - 2.0 ** (-5 - torch.arange(HEADS).double())
    lags = torch.arange(200)[:, None] - torch.arange(200)
    decays = torch.where(lags >= 0, gamma[:, None, None] ** lags.clamp(min=0), 0.0)
    out = kernel_attention(
        query, key, value, content=Factored(normalise=False), causal=True,
        position=ExponentialDecay(-1 / gamma.log()), backend="chunks",
    )  # fmt: skip
    torch.testing.assert_close(out, (query @ key.mT * decays) @ value, rtol=1e-11, atol=1e-11)


def test_lightning_attention_of_minimax():
    """The block of transformers with its random weights, over several of its blocks and from its cache."""
    minimax = pytest.importorskip("transformers.models.minimax.modeling_minimax")
    torch.manual_seed(0)
    config = minimax.MiniMaxConfig(
        hidden_size=24, num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=8, block_size=32,
        num_hidden_layers=4, hidden_act="silu", layer_types=["linear_attention"] * 4,
    )  # fmt: skip
    theirs = minimax.MiniMaxLightningAttention(config, layer_idx=1)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, seen = torch.randn(2, 100, 24), []
    theirs.norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    theirs(x, (None, None), None)
    projected = torch.nn.functional.silu(theirs.qkv_proj(x)).view(2, 100, HEADS, 24).transpose(1, 2)
    query, key, value = projected.split(8, dim=3)
    options = {
        "content": Factored(normalise=False), "causal": True,
        "position": ExponentialDecay(1 / theirs.slope_rate.flatten()),
    }  # fmt: skip
    out = kernel_attention(query, key, value, **options)
    assert choose_backend(query, key, value, **options).name == "chunks"
    found = out.transpose(1, 2).flatten(2)
    assert_close({"out": found}, {"out": seen[0]}, 2e-6, "MiniMax")


def test_a_state_goes_on_in_full_precision_under_autocast() -> None:
    torch.manual_seed(0)
    query, key, value = torch.rand(3, 1, 2, 9, 4)
    options = {"content": Factored(), "position": ExponentialDecay(5.0), "causal": True}
    earlier = torch.zeros(1, dtype=torch.long)
    expected = attention_from_state(query, key, value, None, earlier, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention_from_state(query, key, value, None, earlier, **options)
    for ours, exact in zip(found, expected, strict=True):
        assert torch.equal(ours, exact)

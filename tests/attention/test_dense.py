"""All pairs written out: outputs and gradients of the definition, and taken where they are faster."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention import MixedLogits, choose_backend, dense, measured
from nadaraya.kernels import ExponentialDecay, Gaussian

N = 7
DEVICE = torch.device("cpu")
FORMS: dict[str, dict[str, Any]] = {
    "table": {"position": torch.linspace(0.0, -3.0, 2 * N, dtype=torch.float64).view(2, N)},
    "Gaussian": {"content": Gaussian(1.5)},
    "causal Gaussian": {"causal": True, "content": Gaussian(1.5)},
    "causal, excluded self": {"causal": True, "exclude_self": True},
    "excluded self": {"exclude_self": True, "content": Gaussian(0.7)},
    "window of itself": {"causal": True, "exclude_self": True, "window": 1},
    "window": {"causal": True, "window": 3, "exclude_self": True},
    "key bias": {"causal": True, "key_bias": torch.linspace(-1.0, 1.0, N, dtype=torch.float64)[None, None]},
    "key bias alone": {"key_bias": torch.linspace(-1.0, 1.0, 2 * N).view(1, 2, N).double()},
    "hidden key": {"key_bias": torch.tensor([[[-torch.inf] * 2 + [0.0] * (N - 2)]]), "causal": True},
    "padding": {"key_mask": torch.arange(N)[None].expand(5, -1) > 2, "causal": True, "exclude_self": True},
    "mask": {"attn_mask": torch.ones(N, N, dtype=torch.bool).triu(2), "exclude_self": True},
    "mass": {"eps": 0.1, "causal": True, "exclude_self": True},
    "documents": {"document_ids": (torch.arange(N) > 3).long().expand(5, -1), "exclude_self": True},
}


def tensors(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, 2, N, 4, generator=generator, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("queries", [N, 3])
@pytest.mark.parametrize("scores", [2**18, 2 * 2 * N * N])
def test_outputs_and_gradients_are_those_of_the_definition(
    form: str, queries: int, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the log-sum-exp, whose way is another; that with it is tested with the other backends."""
    monkeypatch.setattr(dense, "_NUMBERS", scores // torch.get_num_threads())
    options = dict(FORMS[form])
    if form == "mask":
        options["attn_mask"] = options["attn_mask"][-queries:]
    found = []
    for backend in ("reference", "dense"):
        query, key, value = leaves = [tensor.clone().requires_grad_() for tensor in tensors()]
        out = kernel_attention(query[:, :, -queries:], key, value, backend=backend, **options)
        grads = torch.autograd.grad((out * torch.sin(torch.arange(out.numel())).view_as(out)).sum(), leaves)
        with torch.no_grad():
            plain = kernel_attention(query[:, :, -queries:], key, value, backend=backend, **options)
        found.append((out, plain, *grads))
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("queries", [N, 1])
@pytest.mark.parametrize("batch", [1, 5])
def test_heads_of_one_item_and_items_of_half_precision_are_done_in_parts(
    batch: int, queries: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here two key heads, each of two query heads, at once."""
    monkeypatch.setattr(dense, "_NUMBERS", 2 * 2 * queries * N // torch.get_num_threads())
    torch.manual_seed(0)
    table = torch.linspace(0.0, -3.0, 8 * N).view(8, N)
    options: dict[str, Any] = {"position": table, "causal": True, "key_bias": torch.randn(1, 8, N)}
    query, key, value = (torch.randn(batch, heads, N, 4, dtype=dtype) for heads in (8, 4, 4))
    leaves = [each.requires_grad_() for each in (query, key, value)]
    found = []
    for backend in ("reference", "dense"):
        out, lse = kernel_attention(
            query[:, :, -queries:], key, value, backend=backend, return_lse=True, **options
        )
        found.append((out, lse, *torch.autograd.grad(out.float().square().sum() + lse.sum(), leaves)))
    rounding = 32 * torch.finfo(dtype).eps
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("multiplied", [(), (torch.bfloat16,)])
@pytest.mark.parametrize(("queries", "little"), [(N, 0), (1, 0), (1, 2**16)])
def test_half_precision_is_as_exact_where_processors_multiply_it(
    form: str,
    multiplied: tuple[torch.dtype, ...],
    queries: int,
    little: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dense, "_MULTIPLIED", multiplied)
    monkeypatch.setattr(dense, "_LITTLE_OF_ONE_ROW", little)
    options, found = {**FORMS[form]}, []
    if form == "mask":
        options["attn_mask"] = options["attn_mask"][-queries:]
    for backend, dtype in (("reference", torch.float64), ("dense", torch.bfloat16)):
        leaves = [each.bfloat16().to(dtype).requires_grad_() for each in tensors()]
        out = kernel_attention(leaves[0][:, :, -queries:], *leaves[1:], backend=backend, **options)
        assert out.dtype == dtype
        with torch.no_grad():
            plain = kernel_attention(leaves[0][:, :, -queries:], *leaves[1:], backend=backend, **options)
        found.append((out, plain, *torch.autograd.grad(out.double().sin().sum(), leaves)))
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("multiplied", [(), (torch.bfloat16,)])
@pytest.mark.parametrize("queries", [N, 1])
@pytest.mark.parametrize("gradients", [True, False])
def test_what_takes_large_products_away_is_as_exact_as_they_are(
    multiplied: tuple[torch.dtype, ...], queries: int, gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask that cancels logits of hundreds, and a Gaussian of points far from the origin."""
    monkeypatch.setattr(dense, "_MULTIPLIED", multiplied)
    monkeypatch.setattr(dense, "_LITTLE_OF_ONE_ROW", 0)
    query, key, value = (20 * each.bfloat16() for each in tensors())
    query = query[:, :, -queries:]
    cancels = -0.5 * (query.float() @ key.float().mT)
    calls: list[dict[str, Any]] = [
        {"content": 0.5, "attn_mask": cancels},
        {"content": Gaussian(8.0)},
        {"content": Gaussian(0.5), "eps": 1e-3},
    ]
    for options in calls:
        exact = [each.double() for each in (query, key, value)]
        wanted = kernel_attention(*exact, backend="reference", **options)
        with torch.set_grad_enabled(gradients):
            found = kernel_attention(query, key, value, backend="dense", **options)
        torch.testing.assert_close(found.double(), wanted, rtol=0.01, atol=0.2)


@pytest.mark.parametrize("group", [1, 2])
def test_second_derivatives_of_half_precision_are_those_of_the_definition(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "_MULTIPLIED", (torch.bfloat16,))
    found = []
    for backend, dtype in (("reference", torch.float64), ("dense", torch.bfloat16)):
        query, key, value = (each.bfloat16().to(dtype) for each in tensors())
        leaves = [each.requires_grad_() for each in (query, key[:, ::group], value[:, ::group])]
        out = kernel_attention(*leaves, backend=backend, causal=True)
        grads = torch.autograd.grad(out.double().sin().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(each.double().square().sum() for each in grads), leaves))
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("form", [*FORMS, "mixed"])
@pytest.mark.parametrize("queries", [N, 1])
def test_dropout_drops_weights_and_multiplies_the_others(form: str, queries: int) -> None:
    options = dict(FORMS.get(form, {"causal": True}))
    if form == "mixed":
        weights = torch.linspace(0.0, 1.0, 5 * 2 * N * 2).view(5, 2, N, 2)[:, :, -queries:]
        options["position"] = MixedLogits(weights.double(), torch.randn(2, N, dtype=torch.float64))
    if form == "mask":
        options["attn_mask"] = options["attn_mask"][:queries]
    query, key, _ = tensors()
    query = query[:, :, -queries:]
    value = torch.eye(N, dtype=torch.float64).expand(5, 2, N, N).clone().requires_grad_()
    whole = kernel_attention(query, key, value, backend="reference", **options)
    torch.manual_seed(0)
    found = [
        kernel_attention(query, key, value, backend="dense", dropout_p=0.4, **options) for _ in range(40)
    ]
    kept = torch.stack([each.detach() != 0.0 for each in found])
    for each, there in zip(found, kept, strict=True):
        torch.testing.assert_close(each, there * whole / 0.6)
    share = kept[:, whole != 0.0].double().mean()
    assert abs(share - 0.6) < 0.05
    (grad,) = torch.autograd.grad(found[0].sum(), value)
    torch.testing.assert_close((grad * value).sum(), found[0].sum())


@pytest.mark.parametrize("form", [form for form in FORMS if form != "documents"])  # one by one, not traced
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_without_gradients_it_is_one_fused_call_and_the_definition(
    form: str, dynamic: bool | None
) -> None:
    """Rows that see nothing among them, with sizes that are numbers and with sizes that are symbols."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def call(*inputs: Tensor, backend: str = "dense") -> Tensor:
        return kernel_attention(*inputs, backend=backend, **FORMS[form])

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend=keep)
    with torch.no_grad():
        ours, expected = compiled(*tensors()), call(*tensors(), backend="reference")
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    fused = any(node.target is F.scaled_dot_product_attention for node in graphs[0].graph.nodes)
    assert fused or "eps" in FORMS[form]


def test_shared_heads_are_compiled_for_any_number_of_them() -> None:
    compiled = torch.compile(kernel_attention, fullgraph=True, dynamic=True, backend="eager")
    for batch, heads in ((2, 2), (3, 4)):
        query, key = torch.randn(batch, heads, N, 4), torch.randn(batch, 1, N, 4)
        for keys in (key, query):
            torch.testing.assert_close(
                compiled(query, keys, keys, causal=True), kernel_attention(query, keys, keys, causal=True)
            )


def test_short_sequences_have_it_and_long_ones_row_blocks() -> None:
    options: dict[str, Any] = {"position": ExponentialDecay(length=5.0), "causal": True}
    for batch, length, name in (
        (1, 64, "dense"),
        (9, 256, "dense"),
        (1, 512, "dense"),
        (9, 300, "sdpa"),
        (1, 1, "sdpa"),
    ):
        found = choose_backend(*torch.randn(3, batch, 2, length, 4).unbind(), **options)
        assert found.name == name
    content = {"content": Gaussian(1.0), "causal": True}
    assert choose_backend(*torch.randn(3, 9, 2, 256, 4).unbind(), **content).name == "dense"
    mixed = MixedLogits(torch.randn(9, 2, 256, 3), torch.randn(3, 256))
    assert choose_backend(*torch.randn(3, 9, 2, 256, 4).unbind(), position=mixed).name == "sdpa"
    dropped = choose_backend(*torch.randn(3, 1, 2, 300, 4).unbind(), dropout_p=0.1, **options)
    assert dropped.name == "dense"
    assert "PyTorch's fused" in choose_backend(*torch.randn(3, 1, 2, 64, 4).unbind()).refused["dense"]
    long = choose_backend(*torch.randn(3, 1, 2, 2000, 4).unbind(), **options)
    assert long.refused["dense"] == "above 1024 tokens memory is O(N)"


def test_products_of_half_precision_are_taken_where_processors_multiply_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then PyTorch's fused attention is for few products, for long sequences and without gradients."""
    few, some, long = (
        torch.randn(3, 1, heads, n, 32).bfloat16() for heads, n in ((1, 64), (8, 128), (8, 800))
    )
    for multiplied, names in (((), ["sdpa"] * 3), ((torch.bfloat16,), ["sdpa", "dense", "sdpa"])):
        monkeypatch.setattr(dense, "_MULTIPLIED", multiplied)
        assert [choose_backend(*each.unbind(), causal=True).name for each in (few, some, long)] == names
    with torch.no_grad():
        assert choose_backend(*some.unbind(), causal=True).name == "sdpa"
    assert choose_backend(*some.float().unbind(), causal=True).name == "sdpa"


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/x", "x" * 300])
def test_a_cache_folder_that_cannot_be_looked_into_is_as_none(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NADARAYA_CACHE", folder)
    monkeypatch.setenv("NADARAYA_DISPATCH", "")
    measured._table.cache_clear()
    try:
        with pytest.warns(UserWarning, match="is ignored, no dispatch table"):
            found = choose_backend(*torch.randn(3, 1, 2, 64, 4).unbind(), position=torch.zeros(2, 64))
        assert found.name == "dense"
    finally:
        measured._table.cache_clear()


def test_the_measured_table_decides_on_the_cpu_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path))
    monkeypatch.setenv("NADARAYA_DISPATCH", "")
    shape = {"batch": 1, "heads": 2, "queries": 64, "keys": 64, "width": 4}
    kind = {"kind": "table", "gradients": False, "dtype": "float32", **shape}
    rows = [{**kind, "way": way, "ms": ms} for way, ms in (("dense", 3.0), ("sdpa", 2.0))]
    wrong = {"backend": "dense", "kind": "Gaussian", "error": None, "tolerance": 1e-3}
    right = {"backend": "sdpa", "kind": "Gaussian", "error": 1e-6, "tolerance": 1e-3}
    content = json.dumps({"identity": measured.identity(DEVICE), "calls": [wrong, right], "rows": rows})
    measured.table_path(DEVICE).write_text(content)
    for forget in (measured._table, measured._nearest):
        forget.cache_clear()
    try:
        tensors = torch.randn(3, 1, 2, 64, 4).unbind()
        found = choose_backend(*tensors, position=torch.zeros(2, 64), causal=True)
        assert found.name == "sdpa"
        assert found.refused["dense"] == "measured: 3 ms where 'sdpa' takes 2 ms"
        assert (
            choose_backend(*tensors, key_bias=torch.zeros(1, 1, 64), causal=True).name == "dense"
        )  # not measured
        longer = torch.randn(3, 1, 2, 128, 4).unbind()
        found = choose_backend(*longer, position=torch.zeros(2, 128), causal=True)
        assert (found.name, found.refused.keys()) == (
            "dense",
            {"triton"},
        )  # the rule: its size was not measured
        found = choose_backend(*tensors, content=Gaussian(1.0), causal=True)
        assert found.name == "sdpa"
        assert found.refused["dense"] == "nadaraya check found it wrong"
    finally:
        for forget in (measured._table, measured._nearest):
            forget.cache_clear()


def test_memory_of_earlier_calls_is_never_that_of_results() -> None:
    calls = [torch.randn(3, 16, 4, 64, 16).unbind() for _ in range(2)]
    table = torch.randn(4, 64)
    outs = []
    with torch.inference_mode():
        outs += [kernel_attention(*some, position=table, causal=True, return_lse=True) for some in calls]
    with torch.no_grad():  # memory of inference mode would refuse to be written here
        outs += [kernel_attention(*some, position=table, causal=True, return_lse=True) for some in calls]
    wanted = [
        kernel_attention(*some, position=table, causal=True, return_lse=True, backend="reference")
        for some in calls
    ]
    for got, want in zip(outs, wanted * 2, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "options", [{"window": 5}, {"exclude_self": True}, {"key_bias": torch.randn(1, 2, 24)}]
)
def test_masks_that_serve_several_calls_are_not_changed_by_them(options: dict[str, Any]) -> None:
    query, key, value = torch.randn(3, 1, 2, 24, 4).unbind()
    for gradients in (False, True, False):
        leaves = [x.clone().requires_grad_(gradients) for x in (query, key, value)]
        got = kernel_attention(*leaves, causal=True, backend="dense", **options)
        want = kernel_attention(query, key, value, causal=True, backend="reference", **options)
        torch.testing.assert_close(got.detach(), want)

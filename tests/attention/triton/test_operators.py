"""The kernels as PyTorch operators: compiled, checkpointed, under autocast, transformed; what they refuse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from nadaraya import InputError, kernel_attention
from nadaraya.attention import MixedLogits, functional, triton
from nadaraya.kernels import Gaussian

pytestmark = pytest.mark.usefixtures("usual_tiles")
GENERAL, DECODING = "nadaraya::triton_attention", "nadaraya::triton_decoding"
PER_QUERY = "nadaraya::triton_attention_per_query"
ONE_TENSOR = f"{GENERAL} of one tensor"
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def name_of(operator: torch._ops.OpOverload, arguments: Any) -> str:
    """Without keys the queries serve as all three."""
    return f"{operator.name()} of one tensor" if arguments[1:2] == (None,) else operator.name()


class Operators(TorchDispatchMode):
    """The names of the operators that ran, of this project's or of another namespace."""

    def __init__(self, namespace: str = "nadaraya") -> None:
        super().__init__()
        self.namespace = namespace
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == self.namespace:
            self.names.add(name_of(func, args))
        return func(*args, **(kwargs or {}))


def general(query: Tensor, key: Tensor, value: Tensor, table: Tensor, eps: float = 0.0) -> Tensor:
    return kernel_attention(
        query, key, value, position=table, causal=True, eps=eps, backend="triton"
    )  # fmt: skip


def general_inputs() -> list[Tensor]:
    return [
        *(torch.randn(1, 2, 24, 16, requires_grad=True) for _ in range(3)),
        torch.randn(2, 24, requires_grad=True),
    ]


def one_tensor(x: Tensor, bandwidth: Tensor) -> Tensor:
    return kernel_attention(
        x, x, x, content=Gaussian(bandwidth), causal=True, exclude_self=True, eps=0.1,
        backend="triton",
    )  # fmt: skip


def one_tensor_inputs() -> list[Tensor]:
    return [torch.randn(1, 2, 24, 16, requires_grad=True), torch.tensor([2.0, 5.0], requires_grad=True)]


def mixed(query: Tensor, key: Tensor, value: Tensor, weights: Tensor, profiles: Tensor) -> Tensor:
    return kernel_attention(
        query, key, value, position=MixedLogits(weights, profiles), causal=True, backend="triton"
    )


def mixed_inputs() -> list[Tensor]:
    return [*general_inputs()[:3], *(torch.randn(s, requires_grad=True) for s in ((1, 2, 24, 3), (3, 9)))]


def decoding_inputs() -> list[Tensor]:
    return [torch.randn(1, 2, 1, 16), *torch.randn(2, 1, 2, 40, 16).unbind(0), torch.randn(2, 40)]


PATHS = pytest.mark.parametrize(
    ("call", "inputs", "operator"),
    [
        (general, general_inputs, GENERAL),
        (one_tensor, one_tensor_inputs, ONE_TENSOR),
        (mixed, mixed_inputs, PER_QUERY),
    ],
    ids=["general", "one tensor", "mixed"],
)


def values_and_gradients(call: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    out = call(*inputs)
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), inputs)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("full", [False, True])
def test_the_general_operator_passes_pytorchs_own_checks(dtype: torch.dtype, full: bool) -> None:
    from nadaraya.attention.triton.launch import document_bounds
    from nadaraya.attention.triton.operator import triton_attention

    q = torch.randn(1, 2, 12, 16, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(1, 1, 12, width, dtype=dtype, requires_grad=True) for width in (16, 24))
    bandwidth = torch.tensor([2.0, 5.0], requires_grad=True) if full else None
    table = torch.randn(2, 23, requires_grad=True) if full else None
    key_bias = torch.randn(1, 1, 12, requires_grad=True) if full else None
    padding = torch.rand(1, 12) < 0.3 if full else None
    documents = document_bounds(torch.arange(12)[None] // 5) if full else None
    masks = (padding, documents, full, 7 if full else 0, full)
    arguments = (q, k, v, 0.25, bandwidth, table, key_bias, *masks)
    torch.library.opcheck(triton_attention, arguments)


@pytest.mark.parametrize("need", [False, True])
def test_the_general_backward_operator_passes_pytorchs_own_checks(need: bool) -> None:
    from nadaraya.attention.triton.launch import document_bounds
    from nadaraya.attention.triton.operator import triton_attention, triton_attention_backward

    q, k, v = torch.randn(3, 1, 2, 12, 16).unbind(0)
    bandwidth, table = torch.tensor([2.0, 5.0]), torch.randn(1, 23)
    documents = document_bounds(torch.arange(12)[None] // 5)
    masks = (torch.randn(2, 12)[None], torch.rand(1, 12) < 0.3, documents, True, 7, True)
    results = triton_attention(q, k, v, 1.0, bandwidth, table, *masks)
    grads = torch.randn_like(q), torch.randn(1, 2, 12)
    arguments = (*grads, q, k, v, *results, 1.0, bandwidth, table, *masks, need, need)
    torch.library.opcheck(triton_attention_backward, arguments)


@pytest.mark.parametrize("exclude_self", [False, True])
def test_the_one_tensor_operators_pass_pytorchs_own_checks(exclude_self: bool) -> None:
    from nadaraya.attention.triton.launch import document_bounds
    from nadaraya.attention.triton.operator import triton_attention, triton_attention_backward

    x, bandwidth = one_tensor_inputs()
    documents = document_bounds(torch.arange(24)[None] // 10) if exclude_self else None
    options = (None, None, None, documents, True, 7, exclude_self)
    torch.library.opcheck(triton_attention, (x, None, None, 1.0, bandwidth, *options))
    x, bandwidth = x.detach(), bandwidth.detach()
    results = triton_attention(x, None, None, 1.0, bandwidth, *options)
    grads = torch.randn_like(x), torch.randn(1, 2, 24)
    arguments = (*grads, x, None, None, *results, 1.0, bandwidth, *options, False, False)
    torch.library.opcheck(triton_attention_backward, arguments)


@pytest.mark.parametrize("full", [False, True])
def test_the_decoding_operator_passes_pytorchs_own_checks(full: bool) -> None:
    from nadaraya.attention.triton.decoding import triton_decoding
    from nadaraya.attention.triton.launch import document_bounds

    q, k, v = torch.randn(1, 2, 1, 16), torch.randn(1, 1, 20, 16), torch.randn(1, 1, 20, 24)
    bandwidth, table = (torch.tensor([2.0, 5.0]), torch.randn(2, 39)) if full else (None, None)
    key_bias, padding = (torch.randn(1, 2, 20), torch.rand(1, 20) < 0.3) if full else (None, None)
    documents = document_bounds(torch.arange(20)[None] // 8) if full else None
    masks = (padding, documents, full, 7 if full else 0, full)
    arguments = (q, k, v, 0.25, bandwidth, table, key_bias, *masks)
    torch.library.opcheck(triton_decoding, arguments)


@PATHS
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_calls_give_the_same_values_and_gradients(
    call: Callable[..., Tensor], inputs: Callable[[], list[Tensor]], operator: str, backend: str
) -> None:
    tensors = inputs()
    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    for actual, expected in zip(
        values_and_gradients(compiled, tensors), values_and_gradients(call, tensors), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("call", "inputs", "operator"),
    [
        (general, general_inputs, GENERAL),
        (one_tensor, one_tensor_inputs, ONE_TENSOR),
        (general, decoding_inputs, DECODING),
    ],
    ids=["general", "one tensor", "decoding"],
)
def test_compilation_chooses_the_operator_that_eager_mode_chooses(
    call: Callable[..., Tensor], inputs: Callable[[], list[Tensor]], operator: str
) -> None:
    tensors = inputs()
    with Operators() as eager:
        call(*tensors)
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    torch.compile(call, fullgraph=True, backend=keep)(*tensors)
    (graph,) = graphs
    compiled = {
        name_of(node.target, node.args)
        for node in graph.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "nadaraya"
    }
    assert eager.names == compiled == {operator}


def test_a_call_that_wants_gradients_is_not_decoded() -> None:
    tensors = decoding_inputs()
    for tensor in tensors:
        tensor.requires_grad_()
        with Operators() as chosen:
            general(*tensors)
        assert chosen.names == {GENERAL}
        with torch.no_grad(), Operators() as chosen:
            general(*tensors)
        assert chosen.names == {DECODING}
        tensor.requires_grad_(False)


@PATHS
def test_checkpointing_gives_the_same_gradients(
    call: Callable[..., Tensor], inputs: Callable[[], list[Tensor]], operator: str
) -> None:
    tensors = inputs()
    expected = values_and_gradients(call, tensors)
    actual = values_and_gradients(lambda *inputs: checkpoint(call, *inputs, use_reentrant=False), tensors)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@PATHS
def test_autocast_takes_nothing_out_of_float32(
    call: Callable[..., Tensor], inputs: Callable[[], list[Tensor]], operator: str
) -> None:
    tensors = inputs()
    expected = values_and_gradients(call, tensors)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        actual = values_and_gradients(call, tensors)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_frozen_arguments_change_no_gradient_of_the_others() -> None:
    tensors = general_inputs()
    expected = values_and_gradients(general, tensors)
    for index, tensor in enumerate(tensors):
        frozen = [t.detach() if t is not tensor else t for t in tensors]
        (grad,) = torch.autograd.grad(general(*frozen).sin().sum(), tensor)
        torch.testing.assert_close(grad, expected[1 + index])


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_a_log_sum_exp_that_nobody_wants_costs_nothing(eps: float) -> None:
    x = torch.randn(1, 2, 8, 16)
    args = functional._checked(x, x, x, causal=True, eps=eps)
    with Operators(namespace="aten") as wanted:
        expected, lse = triton.attention(args, with_lse=True)
    with Operators(namespace="aten") as unwanted:
        out, nothing = triton.attention(args)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    assert lse.shape == (1, 2, 8)
    assert eps > 0.0 or nothing is None
    assert "aten::mul.Tensor" in wanted.names
    assert ("aten::mul.Tensor" in unwanted.names) == (eps > 0.0)  # ε needs it


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float64}, "float16, bfloat16 or float32, not torch.float64"),
        ({"attn_mask": torch.zeros(8, 8)}, "it takes no attn_mask"),
        ({"dropout_p": 0.1}, "it has no dropout"),
        ({"width": 257}, "heads are wider than 256"),
        ({"return_weights": True}, "only the reference returns weights"),
    ],
)
def test_asked_for_by_name_it_says_why_it_cannot(changes: dict[str, Any], reason: str) -> None:
    x = torch.randn(1, 1, 8, changes.pop("width", 16), dtype=changes.pop("dtype", torch.float32))
    options = {name: o.to(x.device) if isinstance(o, Tensor) else o for name, o in changes.items()}
    with pytest.raises(InputError, match=reason) as caught:
        kernel_attention(x, x, x, **options, backend="triton")
    assert "\n" not in str(caught.value)


def test_without_the_interpreter_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(1, 1, 8, 16, device="cpu")
    with pytest.raises(InputError, match="the tensors are on cpu, not on a CUDA device"):
        kernel_attention(x, x, x, backend="triton")


def test_auto_never_takes_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x = torch.randn(1, 1, 8, 16, device="cpu")
    with Operators() as chosen:
        kernel_attention(x, x, x, causal=True)
        kernel_attention(x, x, x, content=Gaussian(1.0))
    assert not {name for name in chosen.names if "triton" in name}


@needs_cuda
def test_auto_takes_the_kernels_on_a_gpu() -> None:
    x = torch.randn(1, 1, 8, 16, device="cuda")
    with Operators() as chosen:
        kernel_attention(x, x, x, causal=True)
    assert not chosen.names  # PyTorch's own attention does it
    with Operators() as chosen:
        kernel_attention(x, x, x, causal=True, exclude_self=True)
    assert chosen.names == {GENERAL}


def test_function_transforms_take_the_definition() -> None:
    q, k, v, table = general_inputs()

    def loss(table: Tensor, backend: str) -> Tensor:
        out = kernel_attention(q.detach(), k.detach(), v.detach(), position=table, backend=backend)
        return out.square().sum()

    (expected,) = torch.autograd.grad(loss(table, "triton"), table)
    torch.testing.assert_close(torch.func.grad(loss)(table.detach(), "auto"), expected)
    with pytest.raises(InputError, match=r"no rule for torch.func transforms"):
        torch.func.grad(loss)(table.detach(), "triton")


@needs_cuda
@PATHS
def test_a_captured_cuda_graph_replays_values_and_gradients(
    call: Callable[..., Tensor], inputs: Callable[[], list[Tensor]], operator: str
) -> None:
    tensors = [t.detach().cuda().requires_grad_() for t in inputs()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # kernels are compiled before the capture
        for _ in range(2):
            values_and_gradients(call, tensors)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = values_and_gradients(call, tensors)
    with torch.no_grad():
        tensors[0].copy_(torch.randn_like(tensors[0]))
    graph.replay()
    torch.cuda.synchronize()
    expected = values_and_gradients(call, tensors)
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))

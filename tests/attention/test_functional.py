"""Argument checks and choice of backend: each mistake gets one clear line."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from nadaraya import InputError, kernel_attention
from nadaraya.attention import GridLogits, MixedKernels, MixedLogits, choose_backend
from nadaraya.kernels import ALiBi, Gaussian, KernelBank

Q = torch.randn(2, 4, 6, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exclude_self": "yes"}, "exclude_self must be True or False, got 'yes'"),
        (
            {"own": "exclude"},
            "argument of kernel_attention must be one of .* 'own': did you mean 'exclude_self'",
        ),
        ({"backend": "spda"}, "backend must be one of .* got 'spda': did you mean 'sdpa'"),
        ({"query": Q[0]}, r"query must be of shape \(batch, heads, tokens, width\), got \(4, 6, 8\)"),
        ({"query": Q.long()}, "query must be floating point, got torch.int64"),
        ({"query": Q.double()}, r"must be of one dtype, got \[torch.float64, torch.float32, torch.float32\]"),
        ({"value": Q.to("meta")}, "must be of one device, got .*meta"),
        ({"value": Q[:, :, :5]}, r"key and value must be equal in .* 'value': \(2, 4, 5, 8\)"),
        ({"query": Q[..., :7]}, "query and key must be equal in batch and width"),
        ({"query": Q[:, :3]}, "number of heads of query must be a multiple of that of key"),
        ({"content": Gaussian(torch.ones(3))}, r"bandwidth of content must be .* \(4,\), got \(3,\)"),
        ({"content": KernelBank(3, 2)}, "content must be a kernel shared by all heads or with one value"),
        ({"content": "gaussian"}, r"content must be None, a scale .*, a Kernel or Factored.*'gaussian'"),
        ({"content": torch.ones(3)}, r"content must be a number or of shape \(4,\), got \(3,\)"),
        ({"content": torch.ones(4).long()}, "content must be floating point where it is a tensor"),
        ({"content": Gaussian(torch.ones(4)).to("meta")}, "bandwidth of content must be on .* cpu, got"),
        ({"query": Q.numpy()}, "query must be a torch tensor, got .*ndarray"),
        ({"content": float("inf")}, "content must be a finite scale, got inf"),
        ({"position": torch.zeros(4, 7)}, r"\(4, 6\) by .* or \(4, 11\) by i - j, got \(4, 7\)"),
        ({"position": torch.zeros(3, 6)}, r"got \(3, 6\)"),
        (
            {"position": torch.zeros(4, 6, dtype=torch.long)},
            "position must be floating point where it is a t",
        ),
        ({"position": torch.zeros(4, 6, 5)}, r"position must be .* of shape \(4, 6, 6\) where it has three"),
        ({"position": "alibi"}, "position must be a Kernel, a table of logits, .* got 'alibi'"),
        (
            {"position": ALiBi(3)},
            "position must be a kernel shared by all heads or with one value for each of",
        ),
        (
            {"position": MixedLogits(Q[..., :2], torch.zeros(3, 6))},
            r"profiles .* \(2, E\) or \(4 or 1, 2, E\)",
        ),
        (
            {"position": MixedLogits(Q[:, :, :5], torch.zeros(8, 6))},
            r"weights of a mixed position must be of",
        ),
        ({"position": MixedLogits(Q, torch.zeros(8, 6), signed=True)}, r"of shape \(8, 2E - 1\) or"),
        (
            {"position": MixedLogits(Q.long(), torch.zeros(8, 6))},
            "weights of .* floating point, got torch.int",
        ),
        ({"position": MixedLogits(Q, Gaussian(torch.ones(3)))}, r"one with batch_shape \(8,\), got Gaussian"),
        (
            {"position": MixedKernels(-Q.abs(), torch.zeros(8, 6))},
            "weights of mixed kernels must be positive",
        ),
        ({"position": GridLogits(torch.zeros(4, 2, 3))}, r"of shape \(4 or 1, 2h - 1, 2w - 1\), got"),
        (
            {"position": GridLogits(torch.zeros(4, 3, 3))},
            r"those of 0 tokens and 2 x 2 patches, got \(6, 6\)",
        ),
        (
            {"position": GridLogits(torch.zeros(4, 3, 5)), "document_ids": torch.zeros(2, 6).long()},
            "document_ids must not be given with a grid",
        ),
        ({"prune_tol": 1.0}, "prune_tol must be 0 or a share between 0 and 1, got 1.0"),
        ({"prune_tol": -0.1}, "prune_tol must be 0 or a share between 0 and 1, got -0.1"),
        ({"window": 0}, "window must be a positive number of tokens or None, got 0"),
        ({"window": 2.5}, "got 2.5"),
        ({"dropout_p": 1.0}, r"dropout_p must be a number in \[0, 1\), got 1.0"),
        ({"eps": -0.1}, "eps must be a finite number of at least 0, got -0.1"),
        ({"eps": "0.1"}, "eps must be a finite number of at least 0, got '0.1'"),
        ({"key_mask": torch.zeros(2, 5, dtype=torch.bool)}, r"and shape \(2, 6\), got .* \(2, 5\)"),
        ({"key_mask": torch.zeros(2, 6)}, r"key_mask must be .* got \(torch.float32"),
        ({"attn_mask": torch.zeros(6, 5)}, r"broadcastable to \(2, 4, 6, 6\), got \(6, 5\)"),
        (
            {"attn_mask": torch.zeros(6, 6, dtype=torch.int)},
            "attn_mask must be of dtype torch.bool .* got torch.int32",
        ),
    ],
)
def test_bad_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    arguments = {"query": Q, "key": Q, "value": Q, **changes}
    tensors = [arguments.pop(name) for name in ("query", "key", "value")]
    with pytest.raises(InputError, match=message) as caught:
        kernel_attention(*tensors, **arguments)
    assert "\n" not in str(caught.value)


def test_grouped_heads_repeat_keys_and_values() -> None:
    q, k, v = torch.randn(1, 6, 5, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    repeated = kernel_attention(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1))
    torch.testing.assert_close(kernel_attention(q, k, v), repeated)


def test_weights_are_returned_by_auto() -> None:
    out, weights = kernel_attention(Q, Q, Q, return_weights=True)
    torch.testing.assert_close(out, kernel_attention(Q, Q, Q), rtol=1e-5, atol=1e-6)
    assert weights.shape == (2, 4, 6, 6)


@pytest.mark.parametrize("content", [None, Gaussian(1.0)], ids=["dot", "gaussian"])
def test_compiles_without_graph_breaks(content: Gaussian | None) -> None:
    table = torch.randn(4, 6, requires_grad=True)

    def call(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return kernel_attention(
            x,
            x,
            x,
            content=content,
            position=table,
            causal=True,
            exclude_self=True,
        )

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    expected, actual = call(Q, table), compiled(Q, table)
    torch.testing.assert_close(actual, expected)
    (want,) = torch.autograd.grad(expected.sum(), table)
    (got,) = torch.autograd.grad(actual.sum(), table)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("by_lag", [True, False], ids=["row blocks", "fused"])
@pytest.mark.parametrize("heads_together", [True, False], ids=["as layers give them", "contiguous"])
def test_the_custom_operators_pass_pytorchs_own_checks(by_lag: bool, heads_together: bool) -> None:
    """Their strides too: compiled code relies on those that the operators say they have."""
    shape = (1, 9, 2, 4) if heads_together else (1, 2, 9, 4)
    q, k, v = (torch.randn(shape) for _ in range(3))
    if heads_together:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    diagonals = torch.randn(2, 17, requires_grad=True) if by_lag else None
    bias = torch.randn(1, 2, 9, requires_grad=True)
    arguments = (*(x.detach().requires_grad_() for x in (q, k, v)), 0.5, diagonals, bias, None, False, 0)
    torch.library.opcheck(torch.ops.nadaraya.blocked_attention.default, arguments)
    with torch.no_grad():
        out, lse = torch.ops.nadaraya.blocked_attention(*arguments)
        backward = (torch.ones_like(out), torch.ones_like(lse), q, k, v, out, lse, *arguments[3:])
        torch.library.opcheck(
            torch.ops.nadaraya.blocked_attention_backward.default, (*backward, by_lag, True, False)
        )


@pytest.mark.parametrize("mixed", [False, True], ids=["by lag", "mixed by the query"])
def test_checkpointing_gives_the_same_gradients(mixed: bool) -> None:
    query, table = Q.clone().requires_grad_(), torch.randn(4, 6, requires_grad=True)
    position = MixedLogits(torch.rand(2, 4, 6, 4), table) if mixed else table

    def call(x: torch.Tensor) -> torch.Tensor:
        return kernel_attention(x, x, x, position=position, causal=True, backend="sdpa").sin()

    expected = torch.autograd.grad(call(query).sum(), (query, table))
    actual = torch.autograd.grad(checkpoint(call, query, use_reentrant=False).sum(), (query, table))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's process status")
def test_memory_stays_far_below_the_full_matrix() -> None:
    """At N = 16,384 one N × N float32 matrix is 1 GiB; forward and backward together stay under a quarter."""
    program = """
from pathlib import Path
import torch
from nadaraya import kernel_attention
def peak():  # KiB, of this program alone: getrusage would count the process that started it
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
def call(tokens):
    q, k, v = (torch.randn(1, 1, tokens, 16, requires_grad=True) for _ in range(3))
    table = torch.randn(1, tokens, requires_grad=True)
    kernel_attention(q, k, v, position=table, causal=True, backend="sdpa").sum().backward()
call(64)
before = peak()
call(16384)
print(peak() - before)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # Inputs, outputs and gradients alone are 7 MiB: less would mean that nothing was measured.
    assert 7 * 1024 < int(result.stdout) < 256 * 1024  # KiB


def test_a_call_says_which_backend_it_takes_and_why_not_a_faster_one() -> None:
    plain = choose_backend(Q, Q, Q, causal=True)
    assert plain.name == ("triton" if Q.is_cuda else "sdpa")
    weights = choose_backend(Q, Q, Q, return_weights=True)
    assert weights.name == "reference"
    assert set(weights.refused) == {"triton", "sdpa"} | (set() if Q.is_cuda else {"dense"})
    assert weights.refused["sdpa"] == "only the reference returns weights"
    assert choose_backend(Q, Q, Q, backend="sdpa").name == "sdpa"
    with pytest.raises(InputError, match="backend 'sdpa' cannot do this call: only the reference"):
        choose_backend(Q, Q, Q, backend="sdpa", return_weights=True)


def test_a_scale_that_is_learned_has_its_gradient() -> None:
    scale = torch.tensor([0.1, 0.5, 1.0, 2.0], requires_grad=True)
    by_tensor = kernel_attention(Q, Q, Q, content=scale)
    for head, number in enumerate(scale.tolist()):
        alone = kernel_attention(Q[:, [head]], Q[:, [head]], Q[:, [head]], content=number)
        torch.testing.assert_close(by_tensor[:, [head]], alone)
    (grad,) = torch.autograd.grad(by_tensor.square().sum(), scale)
    assert (grad != 0).all()

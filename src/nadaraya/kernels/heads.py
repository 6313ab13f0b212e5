"""Heads of a kernel or another part with one value per head: those kept, and each at its own distances."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nadaraya.kernels.base import Kernel


def keep_kernel_heads(kernel: Kernel, heads: Sequence[int]) -> None:
    """Keep the values of some heads, in place; a kernel that all heads share stays as it is.

    Args:
        kernel: a kernel or a composite of several; tensors whose first axis is as long as there are heads
            have one row per head, those named in the class attribute `shared_tensors` excepted. Parts with
            n values per head have n rows for each.
        heads: indices into the heads that it has, in the order in which they remain.

    >>> from nadaraya.kernels import KernelBank
    >>> from nadaraya.kernels.heads import keep_kernel_heads
    >>> bank = KernelBank(num_heads=4, num_terms=8)
    >>> keep_kernel_heads(bank, [0, 3])
    >>> bank.lag_logits(num_lags=10).shape
    torch.Size([2, 10])
    """
    num_heads = kernel.batch_shape.numel()
    for _, part, tensors in list(_parts(kernel)):
        for name, tensor in tensors.items():
            setattr(part, name, kept_blocks(tensor, heads, num_heads))
        if hasattr(part, "num_heads"):
            part.num_heads = len(heads)  # type: ignore[assignment]
        part.batch_shape = torch.Size((len(heads) * part.batch_shape[0] // num_heads,))


class PartByHead(nn.Module):
    """A part of an attention layer with values of each of H heads' own.

    Attributes:
        per_head: names of what lies in H equal blocks, one for each head: the rows of tensors, the outputs of
            linear maps, the values of kernels. One that is not there, or None, has none.
    """

    per_head: tuple[str, ...] = ()

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def keep_heads(self, heads: Sequence[int]) -> None:
        """Keep what belongs to some heads, in place."""
        for name in self.per_head:
            value = getattr(self, name, None)
            if isinstance(value, Kernel):
                keep_kernel_heads(value, heads)
            elif isinstance(value, nn.Linear):
                keep_rows(value, heads, self.num_heads)
            elif value is not None:
                setattr(self, name, kept_blocks(value, heads, self.num_heads))
        self.num_heads = len(heads)


def log_by_head(kernel: Kernel, r: Tensor) -> Tensor:
    """log κ_h(r_h), (B, H, …): each head of a kernel, or one for all, at its own distances r, (B, H, …).

    >>> import torch
    >>> from nadaraya.kernels import Gaussian
    >>> from nadaraya.kernels.heads import log_by_head
    >>> log_by_head(Gaussian(torch.tensor([1.0, 2.0])), torch.tensor([[1.0, 2.0]]))
    tensor([[-0.5000, -0.5000]], grad_fn=<...>)
    """
    if not kernel.batch_shape:
        return kernel.log(r)
    rows = {
        f"kernel.{prefix}{name}": tensor.unflatten(0, (r.shape[1], -1))
        for prefix, _, tensors in _parts(kernel)
        for name, tensor in tensors.items()
    }

    if not torch.compiler.is_compiling():
        # The call puts its tensors into the modules for a while: not into those that other threads read.
        kernel = copy.deepcopy(kernel, {id(tensor): tensor for tensor in kernel.tensors()})

    def of_one_head(own: dict[str, Tensor], r: Tensor) -> Tensor:
        found: Tensor = functional_call(_Log(kernel), own, (r,), tie_weights=False)
        return found[(0,) * (found.dim() - r.dim())]  # one head's, or all alike

    return torch.vmap(of_one_head, in_dims=(0, 1), out_dims=1)(rows, r)


class _Log(nn.Module):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, r: Tensor) -> Tensor:
        return self.kernel.log(r)


def _parts(kernel: Kernel) -> Iterator[tuple[str, Kernel, dict[str, Tensor]]]:
    """Parts that differ by head: how their tensors' names begin, and the tensors with a row for each."""
    for prefix, part in kernel.named_modules():
        if not isinstance(part, Kernel) or not part.batch_shape:
            continue
        shared = getattr(part, "shared_tensors", ())
        own = {**part._parameters, **part._buffers}
        own |= {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}
        by_head = {
            name: tensor
            for name, tensor in own.items()
            if tensor is not None and tensor.shape[:1] == part.batch_shape and name not in shared
        }
        yield f"{prefix}." if prefix else "", part, by_head


def seen_keys(heads: Sequence[int], shared: int) -> list[int] | None:
    """Index of the key head that each of some heads sees, among those seen; None where they share evenly.

    Heads are ascending numbers among all, of which `shared` see one key head.
    """
    keys = sorted({head // shared for head in heads})
    seen, each = [keys.index(head // shared) for head in heads], len(heads) // max(1, len(keys))
    return None if seen == [row // each for row in range(len(heads))] else seen


def kept_blocks(tensor: Tensor, heads: Sequence[int], num_heads: int, dim: int = 0) -> Any:
    """The equal blocks of some heads along an axis; a parameter of a parameter, which trains where it did."""
    index = torch.tensor(list(heads), device=tensor.device)
    blocks = tensor.detach() if isinstance(tensor, nn.Parameter) else tensor
    kept = blocks.unflatten(dim, (num_heads, -1)).index_select(dim, index).flatten(dim, dim + 1)
    return nn.Parameter(kept, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else kept


def keep_rows(linear: Any, heads: Sequence[int], num_heads: int) -> None:
    """Keep the outputs of a linear map that belong to some heads, in place; also of a Conv1D, transposed."""
    outputs, name = (0, "out_features") if isinstance(linear, nn.Linear) else (1, "nf")
    linear.weight = kept_blocks(linear.weight, heads, num_heads, dim=outputs)
    if linear.bias is not None:
        linear.bias = kept_blocks(linear.bias, heads, num_heads)
    setattr(linear, name, linear.weight.shape[outputs])


def keep_columns(linear: Any, heads: Sequence[int], num_heads: int) -> None:
    """Keep the inputs of a linear map that come from some heads, in place; also of a Conv1D, transposed."""
    inputs, name = (1, "in_features") if isinstance(linear, nn.Linear) else (0, "nx")
    linear.weight = kept_blocks(linear.weight, heads, num_heads, dim=inputs)
    setattr(linear, name, linear.weight.shape[inputs])

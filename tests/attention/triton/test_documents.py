"""Documents packed into one row: each as if it were alone, and no tile of another one is visited."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from grids import covering
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.kernels import Gaussian

Agreement = Callable[..., dict[str, Tensor]]
Cut = Callable[[int, int], AbstractContextManager[None]]
Packed = Callable[[int, int, int], Tensor]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def options_of(similarity: str, **options: Any) -> dict[str, Any]:
    content = {"content": Gaussian(torch.tensor([2.0, 5.0]))} if similarity == "gaussian" else {}
    return {**content, **options}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("similarity", "causal", "window", "exclude_self", "lengths", "documents"),
    covering(
        ["dot", "gaussian"],
        [False, True],
        [None, 11],
        [False, True],
        [(48, 48), (33, 50), (3, 70)],
        [2, 12],
        whole=False,
        together=3,
    ),
)
def test_documents_cross_with_every_mask(
    assert_agreement: Agreement,
    cut: Cut,
    packed: Packed,
    similarity: str,
    causal: bool,
    window: int | None,
    exclude_self: bool,
    lengths: tuple[int, int],
    documents: int,
) -> None:
    num_queries, num_keys = lengths
    tensors = [torch.randn(2, 2, num_queries, 16), *torch.randn(2, 2, 1, num_keys, 16).unbind(0)]
    options = options_of(similarity, causal=causal, window=window, exclude_self=exclude_self)
    options["key_bias"] = torch.randn(2, 2, num_keys)
    options["key_mask"] = torch.rand(2, num_keys) >= 0.2
    options["position"] = torch.randn(2, 2 * num_keys - 1)
    options["document_ids"] = packed(2, num_keys, documents)
    with cut(*((16, 32) if documents == 2 else (32, 16))):
        assert_agreement(tensors, options)


@pytest.mark.parametrize(
    ("tiles", "causal", "window", "exclude_self", "documents"),
    covering([(16, 32), (32, 16)], [False, True], [None, 11], [False, True], [2, 40]),
)
def test_one_tensor_of_packed_documents_has_one_gradient(
    assert_agreement: Agreement,
    cut: Cut,
    packed: Packed,
    tiles: tuple[int, int],
    causal: bool,
    window: int | None,
    exclude_self: bool,
    documents: int,
) -> None:
    x = torch.randn(2, 1, 50, 16)
    options: dict[str, Any] = {"content": Gaussian(torch.tensor([3.0]))}
    options |= {"causal": causal, "window": window, "exclude_self": exclude_self}
    with cut(*tiles):
        actual = assert_agreement([x, x, x], {**options, "document_ids": packed(2, 50, documents)})
    assert actual.keys() == {"output", "query", "bandwidth"}


def test_every_document_is_as_a_call_of_its_own(cut: Cut) -> None:
    tensors = [torch.randn(1, 2, 90, 16) for _ in range(3)]
    lengths = (17, 1, 40, 32)
    ids = torch.arange(4).repeat_interleave(torch.tensor(lengths))[None]
    options = {"causal": True, "backend": "triton"}
    with cut(16, 32):
        whole = kernel_attention(*tensors, document_ids=ids, **options)
        pieces = zip(*(t.split(lengths, 2) for t in tensors), strict=True)
        apart = torch.cat([kernel_attention(*piece, **options) for piece in pieces], 2)
    torch.testing.assert_close(whole, apart)


@pytest.mark.parametrize(
    ("path", "causal", "first"),
    covering(["three tensors", "with a table", "one tensor"], [False, True], [False, True]),
)
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # of the interpreter
def test_tiles_of_other_documents_are_not_visited(cut: Cut, path: str, causal: bool, first: bool) -> None:
    """NaN in another document would spread to all that multiplies it, by zero too."""
    ids = torch.arange(128)[None] // 64
    spoilt, clean = (slice(0, 64), slice(64, 128)) if first else (slice(64, 128), slice(0, 64))
    # In float32 the Gaussian would take the mean of all keys first.
    dtype = torch.float16 if path == "one tensor" else torch.float32
    tensors = [torch.randn(1, 1, 128, 16, dtype=dtype) for _ in range(1 if path == "one tensor" else 3)]
    for tensor in tensors:
        tensor[:, :, spoilt] = torch.nan
        tensor.requires_grad_()
    options: dict[str, Any] = {"causal": causal, "backend": "triton"}
    if path == "one tensor":
        options["content"] = Gaussian(3.0)
    if path == "with a table":
        options["position"] = torch.randn(1, 255, requires_grad=True)
    with cut(16, 32):
        query, key, value = tensors * 3 if path == "one tensor" else tensors
        out = kernel_attention(query, key, value, document_ids=ids, **options)
        grad_out = torch.zeros_like(out)
        grad_out[:, :, spoilt] = torch.nan
        grad_out[:, :, clean] = 1.0
        out.backward(grad_out)
    assert out[:, :, clean].isfinite().all()
    assert out[:, :, spoilt].isnan().all()
    for tensor in tensors:
        assert tensor.grad is not None
        assert tensor.grad[:, :, clean].isfinite().all()


def test_decoding_reads_the_last_document_alone() -> None:
    query = torch.randn(1, 2, 1, 16)
    key, value = torch.randn(2, 1, 2, 1000, 16).unbind(0)
    key[:, :, :512] = value[:, :, :512] = torch.nan
    ids = (torch.arange(1000) >= 512).long()[None]
    out = kernel_attention(query, key, value, document_ids=ids, causal=True, backend="triton")
    tail = kernel_attention(query, key[:, :, 512:], value[:, :, 512:], causal=True, backend="reference")
    torch.testing.assert_close(out, tail)


def test_documents_begin_and_end_where_their_numbers_change() -> None:
    from nadaraya.attention.triton.launch import document_bounds

    ids = torch.tensor([[5, 5, 2, 2, 2, 9], [0, 0, 0, 0, 0, 0]])
    assert document_bounds(ids).tolist() == [
        [[0, 0, 2, 2, 2, 5], [2, 2, 5, 5, 5, 6]],
        [[0, 0, 0, 0, 0, 0], [6, 6, 6, 6, 6, 6]],
    ]


def test_the_bounds_of_documents_are_found_without_looking_at_numbers() -> None:
    """A tensor without numbers: whatever would wait for a GPU raises."""
    from nadaraya.attention.triton.launch import document_bounds

    ids = torch.empty((3, 10), dtype=torch.int64, device="meta")
    assert document_bounds(ids).shape == (3, 2, 10)

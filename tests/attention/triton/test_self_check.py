"""What `auto` does on a GPU, step by step: safe choices, self-checks, the measured table.

Triton's interpreter stands in for a GPU where there is none.
"""

import json
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention import MixedLogits, choose_backend, measured, self_check, triton
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.kernels import Gaussian

pytestmark = [
    pytest.mark.usefixtures("usual_tiles"),
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),  # numpy's, of the interpreter's −∞
]
DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dispatch as on a GPU, with nothing checked or measured so far."""
    monkeypatch.setattr(AttentionArguments, "on_gpu", True)
    monkeypatch.setattr(self_check, "_found", {})
    monkeypatch.setattr(self_check, "_TOKENS", 40)
    measured._nearest.cache_clear()
    measured._table.cache_clear()
    torch.manual_seed(0)
    yield
    measured._nearest.cache_clear()
    measured._table.cache_clear()


def bank(tokens: int = 24, gradient: bool = True) -> tuple[list[Tensor], dict[str, Any]]:
    """A call that PyTorch's fused attention cannot do as it stands."""
    tensors = [torch.randn(1, 2, tokens, 16, requires_grad=gradient) for _ in range(3)]
    return tensors, {"position": torch.randn(2, tokens, requires_grad=gradient), "causal": True}


attention, problem = triton.attention, self_check.problem


def wrong_numbers(args: AttentionArguments, with_lse: bool = False) -> tuple[Tensor, Tensor | None]:
    out, lse = attention(args, with_lse)
    return out * 1.01, lse


def raises(args: AttentionArguments, with_lse: bool = False) -> tuple[Tensor, None]:
    raise RuntimeError("PassManager::run failed\nat line 3")


def hangs(args: AttentionArguments, with_lse: bool = False) -> tuple[Tensor, None]:
    threading.Event().wait(20)
    return args.value, None


BROKEN = {
    wrong_numbers: "its self-check found an error of ",
    raises: "its self-check failed with RuntimeError: PassManager::run failed",
    hangs: "its self-check failed with TimeoutError: no end within 0.2 s",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_kernels_leave_the_call_to_the_next_backend_with_one_warning(
    broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "attention", broken)
    monkeypatch.setattr(self_check, "_LIMIT", 0.2 if broken is hangs else 60.0)
    tensors, options = bank()
    with pytest.warns(UserWarning, match="Triton kernels are not used") as caught:
        out = kernel_attention(*tensors, **options)
    assert len(caught) == 1
    assert BROKEN[broken] in str(caught[0].message)
    torch.testing.assert_close(out, kernel_attention(*tensors, **options, backend="reference"))
    with warnings.catch_warnings():  # of one kind of call there is no second warning, at any length
        warnings.simplefilter("error")
        kernel_attention(*bank(30)[0], **bank(30)[1])
        chosen = choose_backend(*tensors, **options)
    assert chosen.name == "sdpa"
    assert chosen.refused["triton"].startswith(BROKEN[broken])


def test_a_wrong_gradient_alone_is_found_and_calls_without_gradients_are_another_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nadaraya.attention.triton import operator

    launch = operator.launch_query_gradient

    def wrong(*args: Any, **options: Any) -> None:
        launch(*args, **options)
        args[2].mul_(1.02)  # the gradient of the query

    monkeypatch.setattr(operator, "launch_query_gradient", wrong)
    with pytest.warns(UserWarning, match="gradients"):
        assert choose_backend(*bank()[0], **bank()[1]).name == "sdpa"
    tensors, options = bank(gradient=False)
    assert choose_backend(*tensors, **options) == ("triton", {})


def test_kernels_that_are_right_are_taken_and_their_kind_is_checked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, ...]] = []

    def counted(args: AttentionArguments, with_lse: bool = False) -> Any:
        calls.append(tuple(args.query.shape))
        return attention(args, with_lse)

    monkeypatch.setattr(triton, "attention", counted)
    for tokens in (24, 24, 30):
        tensors, options = bank(tokens)
        out = kernel_attention(*tensors, **options)
        torch.testing.assert_close(out, kernel_attention(*tensors, **options, backend="reference"))
    assert calls == [(2, 2, 40, 16), (1, 2, 24, 16), (1, 2, 24, 16), (1, 2, 30, 16)]
    kernel_attention(*tensors, **options, exclude_self=True)
    assert len(calls) == 6


def test_a_backend_by_name_is_obeyed_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "attention", wrong_numbers)
    tensors, options = bank()
    out = kernel_attention(*tensors, **options, backend="triton")
    exact = kernel_attention(*tensors, **options, backend="reference")
    torch.testing.assert_close(out, exact * 1.01)


def test_the_callers_random_numbers_are_untouched() -> None:
    tensors, options = bank()
    state = torch.random.get_rng_state()
    choose_backend(*tensors, **options)
    assert self_check._found
    assert torch.equal(state, torch.random.get_rng_state())


def test_pytorchs_own_kernels_come_first_where_they_are_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "attention", raises)
    x = torch.randn(1, 2, 24, 16)
    stock: list[dict[str, Any]] = [{"causal": True}, {"content": Gaussian(2.0)}]
    for options in stock:
        chosen = choose_backend(x, x, x, **options)
        assert chosen == ("sdpa", {"triton": "PyTorch's fused attention does this call as it stands"})
    # Of float16 the Gaussian's rewrite may overflow: (σ = 0.02, width 64) has ‖k‖²/(2σ²) = 80,000.
    half = torch.randn(1, 2, 24, 64).half()
    options = {"content": Gaussian(0.02), "causal": True}
    with pytest.warns(UserWarning, match="float16"):
        out = kernel_attention(half, half, half, **options)
    torch.testing.assert_close(out, kernel_attention(half, half, half, **options, backend="reference"))


EVERY_KIND = {
    "one tensor": lambda x: ([x, x, x], {"content": Gaussian(2.0), "causal": True, "exclude_self": True}),
    "window": lambda x: ([x, x + 1, x], {"window": 5}),
    "key bias and padding": lambda x: (
        [x, x + 1, x - 1],
        {"key_bias": torch.randn(1, 1, 24), "key_mask": torch.arange(24)[None] < 20, "causal": True},
    ),
    "documents": lambda x: ([x, x, x], {"document_ids": torch.arange(24)[None] // 9, "causal": True}),
    "mixed": lambda x: (
        [x, x + 1, x],
        {"position": MixedLogits(torch.randn(1, 2, 24, 3), torch.randn(3, 9)), "causal": True},
    ),
    "decoding": lambda x: ([x.detach()[:, :, :1], x.detach(), x.detach()], {"position": torch.randn(2, 24)}),
}


@pytest.mark.parametrize("name", EVERY_KIND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_every_kind_pass_their_check(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "_MANY_TOKENS", 200)
    tensors, options = EVERY_KIND[name](torch.randn(1, 2, 24, 16).to(dtype).requires_grad_())
    assert choose_backend(*tensors, **options).name == "triton"
    assert list(self_check._found.values()) == [None]


def test_a_compiled_call_is_checked_while_it_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "attention", raises)
    tensors, options = bank()

    def call(*tensors: Tensor) -> Tensor:
        return kernel_attention(*tensors[:3], position=tensors[3], causal=True)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with pytest.warns(UserWarning, match="Triton kernels are not used"):
        out = compiled(*tensors, options["position"])
    torch.testing.assert_close(out, kernel_attention(*tensors, **options, backend="reference"))


# The measured table.


def row(way: str, ms: float, **changes: Any) -> dict[str, Any]:
    shape = {"batch": 2, "heads": 4, "queries": 256, "keys": 256, "width": 16}
    kind = {"kind": "bank", "gradients": True, "dtype": "float32"}
    return {**kind, **shape, "way": way, "ms": ms, **changes}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Path]:
    """Write a table of this device into a cache folder of the test, from which `auto` reads."""
    monkeypatch.setattr(self_check, "problem", lambda *_: None)
    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path))
    monkeypatch.setenv("NADARAYA_DISPATCH", "")

    def make(content: Any) -> Path:
        path = measured.table_path(DEVICE)
        if isinstance(content, list):
            content = json.dumps({"identity": measured.identity(DEVICE), "calls": [], "rows": content})
        path.write_text(content)
        return path

    return make


def test_the_faster_backend_of_the_nearest_shape_is_taken(write: Callable[[Any], Path]) -> None:
    longer = {"keys": 4096, "queries": 4096}
    others = [row("sdpa", 1.0, kind="window"), row("N × N", 0.1), row("sdpa", 0.1, gradients=False)]
    write(
        [
            row("triton", 3.0),
            row("sdpa", 2.0),
            row("triton", 9.0, **longer),
            row("sdpa", 50.0, **longer),
            *others,
        ]
    )
    tensors, options = bank(200)
    reason = "measured: 3 ms where 'sdpa' takes 2 ms"
    assert choose_backend(*tensors, **options) == ("sdpa", {"triton": reason})
    tensors, options = bank(2048)
    assert choose_backend(*tensors, **options) == (
        "triton",
        {"sdpa": "measured: 50 ms where 'triton' takes 9 ms"},
    )
    # What was not measured by both has the safe choice.
    tensors, options = bank(gradient=False)
    assert choose_backend(*tensors, **options) == ("triton", {})
    assert choose_backend(*tensors, causal=True).name == "sdpa"


def test_what_was_measured_fastest_is_checked_too(
    write: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "problem", problem)
    write(
        [
            row("triton", 1.0, kind="dot product", gradients=False),
            row("sdpa", 2.0, kind="dot product", gradients=False),
        ]
    )
    tensors = bank(gradient=False)[0]
    assert choose_backend(*tensors, causal=True).name == "triton"
    monkeypatch.setattr(self_check, "_found", {})
    monkeypatch.setattr(triton, "attention", raises)
    with pytest.warns(UserWarning, match="not used"):
        assert choose_backend(*tensors, causal=True).name == "sdpa"


def test_the_table_is_read_once_and_can_be_turned_off(
    write: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write([row("triton", 3.0), row("sdpa", 2.0)])
    tensors, options = bank()
    assert choose_backend(*tensors, **options).name == "sdpa"
    path.unlink()
    assert choose_backend(*tensors, **options).name == "sdpa"
    write([row("triton", 3.0), row("sdpa", 2.0)])
    measured._nearest.cache_clear()
    measured._table.cache_clear()
    monkeypatch.setenv("NADARAYA_DISPATCH", "off")
    assert choose_backend(*tensors, **options).name == "triton"


DAMAGED = {
    "empty": "",
    "cut": '{"identity": {"dev',
    "a list": "[]",
    "nested": "[" * 100_000,
    "other versions": json.dumps({"identity": {"device": "another"}, "rows": []}),
    "no way": [{name: value for name, value in row("sdpa", 1.0).items() if name != "way"}],
    "text for a number": [row("sdpa", "fast")],  # type: ignore[arg-type]
    "not finite": [row("sdpa", float("nan")), row("triton", 1.0)],
    "negative": [row("sdpa", -1.0)],
    "no tokens": [row("sdpa", 1.0, keys=0)],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_or_foreign_table_is_ignored_with_one_warning(
    name: str, write: Callable[[Any], Path]
) -> None:
    path = write(DAMAGED[name])
    with pytest.warns(UserWarning, match="is ignored") as caught:
        names = {choose_backend(*call[0], **call[1]).name for call in (bank(), bank(), bank(100))}
    assert names == {"triton"}
    assert len(caught) == 1
    assert str(path) in str(caught[0].message)

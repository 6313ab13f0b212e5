"""Programs in any order and interleaved give the same bits: none depends on what another one wrote."""

import math
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention import MixedKernels
from nadaraya.kernels import Gaussian

pytestmark = [
    pytest.mark.usefixtures("usual_tiles"),
    pytest.mark.skipif(
        os.environ.get("NADARAYA_TEST_DEVICE") == "cuda", reason="the interpreter's programs are reordered"
    ),
]


class Interleaved:
    """Runs the programs of every launch in a random order, changing the program at accesses to memory.

    Triton's interpreter runs program after program. Here each waits in a thread of its own until it is its
    turn, and only one runs at a time: a seed repeats a run.
    """

    def __init__(self, builder: Any, seed: int) -> None:
        self._builder = builder
        self._random = random.Random(seed)
        self._running: int | None = None

    def run(self, programs: dict[tuple[int, ...], Callable[[], None]]) -> None:
        self._places = list(programs)
        self._waiting = list(range(len(programs)))
        self._turns = [threading.Semaphore(0) for _ in programs]
        self._errors: list[BaseException] = []
        threads = [
            threading.Thread(target=self._program, args=(number, program))
            for number, program in enumerate(programs.values())
        ]
        for thread in threads:
            thread.start()
        self._hand_on()
        for thread in threads:
            thread.join()
        self._running = None
        if self._errors:
            raise self._errors[0]

    def at_memory(self) -> None:
        """To be called at an access to memory: now and then another program's turn."""
        if self._running is None or self._random.random() < 0.5:
            return
        number = self._running
        self._hand_on()
        self._turns[number].acquire()

    def _program(self, number: int, program: Callable[[], None]) -> None:
        self._turns[number].acquire()
        try:
            with np.errstate(all="ignore"):
                program()
        except BaseException as error:
            self._errors.append(error)
        self._waiting.remove(number)
        self._hand_on()

    def _hand_on(self) -> None:
        if self._waiting:
            self._running = self._random.choice(self._waiting)
            self._builder.grid_idx = self._places[self._running]
            self._turns[self._running].release()


@pytest.fixture
def interleave(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """From its call on, launches are interleaved, by a seed."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    builder_class, builder = interpreter.InterpreterBuilder, interpreter.interpreter_builder
    executor_class, launch = interpreter.GridExecutor, interpreter.GridExecutor.__call__

    def start(seed: int) -> None:
        schedule = Interleaved(builder, seed)

        def launch_interleaved(executor: Any, *args: Any, **options: Any) -> None:
            function, programs = executor.fn, {}

            def collect(**arguments: Any) -> None:
                programs[builder.grid_idx] = lambda: function(**arguments)
                if len(programs) == math.prod(builder.grid_dim):
                    schedule.run(programs)

            def set_grid_dim(*dimensions: int) -> None:
                builder_class.set_grid_dim(builder, *dimensions)
                executor.fn = collect  # the next call of it is the first program's

            with monkeypatch.context() as patch:
                patch.setattr(builder, "set_grid_dim", set_grid_dim)
                launch(executor, *args, **options)

        monkeypatch.setattr(executor_class, "__call__", launch_interleaved)
        for name in ("create_masked_load", "create_masked_store"):
            access = getattr(builder_class, name)

            def access_in_turn(*args: Any, access: Any = access, **options: Any) -> Any:
                schedule.at_memory()
                return access(*args, **options)

            monkeypatch.setattr(builder_class, name, access_in_turn)

    return start


def general(packed: Callable[[int, int, int], Tensor]) -> tuple[list[Tensor], dict[str, Any]]:
    tensors = [torch.randn(2, 2, 30, 16), *torch.randn(2, 2, 1, 40, 16).unbind(0)]
    options = {"position": torch.randn(1, 79), "key_bias": torch.randn(1, 2, 40), "exclude_self": True}
    return tensors, {**options, "causal": True, "document_ids": packed(2, 40, 2)}


def one_tensor(packed: Callable[[int, int, int], Tensor]) -> tuple[list[Tensor], dict[str, Any]]:
    x = torch.randn(1, 2, 50, 16)
    return [x, x, x], {"content": Gaussian(torch.tensor([2.0, 5.0]))}


def mixed(packed: Callable[[int, int, int], Tensor]) -> tuple[list[Tensor], dict[str, Any]]:
    tensors = [torch.randn(1, 2, 40, 16), *torch.randn(2, 1, 1, 40, 16).unbind(0)]
    position = MixedKernels(torch.rand(1, 2, 40, 2), torch.randn(2, 12))
    return tensors, {"position": position, "causal": True, "key_bias": torch.randn(1, 2, 40)}


@pytest.mark.parametrize(
    "call",
    [pytest.param(general, marks=pytest.mark.slow), one_tensor, mixed],
    ids=["general", "one tensor", "mixed"],
)
def test_the_order_of_programs_changes_no_bit(
    outcome: Callable[..., dict[str, Tensor]],
    packed: Callable[[int, int, int], Tensor],
    interleave: Callable[[int], None],
    call: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So that several programs sum the gradient of the table.
    monkeypatch.setattr("nadaraya.attention.triton.operator.num_multiprocessors", lambda device: 4)
    monkeypatch.setattr("nadaraya.attention.triton.strips._ROWS", 32)
    monkeypatch.setattr("nadaraya.attention.triton.strips._LOGITS", 1)
    torch.manual_seed(0)
    arguments = (*call(packed), "triton", torch.float32)
    expected = outcome(*arguments)
    interleave(0)
    actual = outcome(*arguments)
    assert all(torch.equal(actual[name], want) for name, want in expected.items())


def test_the_order_of_programs_changes_no_bit_in_decoding(interleave: Callable[[int], None]) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 2, 1, 16), *torch.randn(2, 2, 2, 600, 16).unbind(0)
    options = {"causal": True, "exclude_self": True, "position": torch.randn(2, 600), "backend": "triton"}
    expected = kernel_attention(query, key, value, **options)
    interleave(0)
    assert torch.equal(kernel_attention(query, key, value, **options), expected)


def test_programs_that_share_a_sum_are_found_out(interleave: Callable[[int], None]) -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def count(total_ptr):  # type: ignore[no-untyped-def]
        tl.store(total_ptr, tl.load(total_ptr) + 1.0)

    totals = []
    for _ in range(2):
        total = torch.zeros(1)
        count[(20,)](total)
        totals.append(total.item())
        interleave(0)
    assert totals[0] == 20
    assert totals[1] < 20


def test_programs_that_wait_for_an_earlier_one_are_found_out(interleave: Callable[[int], None]) -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def chain(total_ptr):  # type: ignore[no-untyped-def]
        place = tl.program_id(0)
        tl.store(total_ptr + place + 1, tl.load(total_ptr + place) + 1.0)

    interleave(0)
    totals = torch.zeros(21)
    chain[(20,)](totals)
    assert totals[-1] < 20

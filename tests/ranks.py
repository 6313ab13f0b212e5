"""Processes forked from one that has imported what takes seconds to import, and two of them as one run."""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.optim import AdamW

from nadaraya.cli import main
from nadaraya.training import ImageRecipe, Recipe

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(
    ["nadaraya.cli.app", "nadaraya.training.images", "nadaraya.training.text", "nadaraya.models",
     "transformers.modeling_utils", "transformers.optimization"]
)  # fmt: skip


class Ended(NamedTuple):
    """What a process left: its exit status and both streams."""

    status: int | None
    out: str
    err: str


def side_by_side(act: Callable[[], None], recipe: Recipe | ImageRecipe, folder: Path) -> list[Ended]:
    """Two processes, without a launcher, that train a recipe by `act`, which is `main` or calls it."""
    path = folder.with_suffix(".yaml")
    path.write_text(recipe.to_yaml())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["nadaraya", "train", str(path), "--run", str(folder), "--json"]
    streams = [[folder.with_suffix(f".{name}{rank}") for name in ("out", "err")] for rank in (0, 1)]
    processes = [
        forked.Process(target=_rank, args=(act, rank, port, command, streams[rank])) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        process.kill()
    return [
        Ended(process.exitcode, *(stream.read_text() for stream in written))
        for process, written in zip(processes, streams, strict=True)
    ]


def _rank(act: Callable[[], None], rank: int, port: int, command: list[str], streams: list[Path]) -> None:
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in given.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    sys.argv = command
    act()


def train_until_the_first_is_killed() -> None:
    """`nadaraya train`; the first process kills itself in its fifth update."""
    step, updates = AdamW.step, 0

    def killing(self: AdamW, *arguments: object, **options: object) -> object:
        nonlocal updates
        updates += 1
        if updates == 5 and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments, **options)

    AdamW.step = killing  # type: ignore[method-assign,assignment]
    main()


def train_and_load_in_parts() -> None:
    """`nadaraya train`, and the model with its weights shared out by transformers beside the whole one."""
    from transformers.distributed import DistributedConfig

    from nadaraya.models import KernelGPTForCausalLM

    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    torch.distributed.barrier()
    folder = sys.argv[sys.argv.index("--run") + 1]
    whole = KernelGPTForCausalLM.from_pretrained(folder)
    parts = KernelGPTForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))
    assert parts.model.blocks[0].mlp.up_proj.weight.to_local().shape == (64, 32)
    assert parts.model.blocks[1].mlp.down_proj.weight.to_local().shape == (32, 64)
    tokens, gradients = torch.arange(12)[None], []
    for model in (whole.eval(), parts.eval()):
        output = model(tokens, labels=tokens)
        output.loss.backward()
        gradients.append((output.logits.detach(), model.model.blocks[0].mlp_norm.weight.grad))
    for expected, given in zip(*gradients, strict=True):
        torch.testing.assert_close(given, expected)

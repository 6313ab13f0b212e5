"""Checkpoints that are complete or absent: written aside, forced to the disk, renamed; checked when read.

A folder `step-00000600` has model.safetensors (weights and buffers), ema.safetensors (their moving average,
where training keeps one), optimizer.safetensors (AdamW's, keyed `exp_avg/PARAMETER NAME`) and state.json
(step, losses not yet in the metrics, checksums). Where the processes share the weights out, tensors are in
one file per process, `shard-*.safetensors`, by `torch.distributed.checkpoint`; any number of processes reads
them. Nothing is pickled: no file can run code when it is read.
"""

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, distributed, nn

from nadaraya.errors import InputError
from nadaraya.files import PARTIAL, first_line, reading, remove_folder, sha256, write_into, writing
from nadaraya.stored import Stored, read_stored
from nadaraya.training.processes import is_sharded

_MODEL, _AVERAGE, _OPTIMIZER = "model.safetensors", "ema.safetensors", "optimizer.safetensors"
_STATE = "state.json"
_MANY = 10**12  # updates
_SHARDS = f"{PARTIAL}shards"  # in the folder of all checkpoints, until one of them is complete
_log = logging.getLogger("nadaraya")


class _State(Stored, extra="allow"):
    """The content of a state.json, and what tells the data of its run from others."""

    step: Annotated[int, Field(ge=0, le=_MANY)]
    seconds: float = 0.0
    losses: list[float] = Field(default_factory=list)
    metrics_sha256: str = ""
    sha256: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are complete: its folder and the content of its state.json."""

    path: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        """Updates made when it was saved."""
        return int(self.state["step"])


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    averaged: nn.Module | None = None,
    *,
    sharded: bool = False,
) -> Path:
    """Write one checkpoint into `folder`; returns its own folder.

    `sharded`: the tensors are there already, by `write_tensors`.

    `state` has plain values to keep, `step` among them. With a full disk, older checkpoints are still there.
    """
    name = _name(state["step"])
    with write_into(folder, name) as scratch:
        path = scratch / name
        path.mkdir()
        if sharded:
            for file in (folder / _SHARDS).iterdir():
                file.rename(path / file.name)
        else:
            save_model(model, str(path / _MODEL))
            if averaged is not None:
                save_model(averaged, str(path / _AVERAGE))
            save_file(_optimizer_tensors(model, optimizer), path / _OPTIMIZER)
        checksums = {file.name: sha256(file) for file in sorted(path.iterdir())}
        checksums[_STATE] = _digest(state)
        (path / _STATE).write_text(json.dumps({**state, "sha256": checksums}, indent=1), encoding="utf-8")
    return folder / name


def write_tensors(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write this process's part of a checkpoint that `save_checkpoint` completes; all processes call it."""
    from torch.distributed import checkpoint as parts

    tensors = {id(tensor): (name, tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    weights = {name: tensor.detach() for name, tensor in tensors.values()}
    with writing(folder), _first_failure():
        writer = parts.HuggingFaceStorageWriter(str(folder / _SHARDS), save_distributed=True)
        parts.save(weights | _optimizer_tensors(model, optimizer), storage_writer=writer)


def drop_old_checkpoints(newest: Path, kept: int, spared: int | None = None) -> None:
    """Remove all checkpoints before `newest` but the last `kept` − 1 and that of update `spared`.

    Later ones, which are damaged, stay.
    """
    before = [path for path in _newest_first(newest.parent) if path.name <= newest.name]
    for old in before[kept:]:
        if spared is None or old.name != _name(spared):
            remove_folder(old)


def drop_later_checkpoints(newest: Path) -> None:
    """Remove all checkpoints after `newest`."""
    for later in _newest_first(newest.parent):
        if later.name > newest.name:
            remove_folder(later)


def find_checkpoint(folder: Path, until: int | None = None) -> Checkpoint | None:
    """The newest complete checkpoint; a damaged one is named in a warning and the one before it is taken.

    None when none was ever saved; an InputError with the newest damaged file when all are damaged, or where
    there are some, but none of update `until` or before.
    """
    damage: list[str] = []
    paths = _newest_first(folder)
    wanted = [path for path in paths if until is None or path.name <= _name(until)]
    if paths and not wanted:
        raise InputError(
            f"{folder} has no checkpoint from before update {until}, up to which a longer run is the same: "
            "choose another folder"
        )
    for path in wanted:
        try:
            found = _check(path)
        except InputError as error:
            damage.append(str(error))
            continue
        for message in damage:
            _log.warning("%s; resuming from the complete checkpoint of step %d instead", message, found.step)
        return found
    if damage:
        raise InputError(
            f"{damage[0]}; no complete checkpoint is left: remove {folder} to start the run over"
        )
    return None


def load_checkpoint(
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    averaged: nn.Module | None = None,
) -> None:
    """Put the weights, their average and the optimizer state back; an InputError if they do not fit."""
    path, what = checkpoint.path, "a checkpoint of this run"
    if is_sharded(model) or not (path / _MODEL).exists():
        with reading(path, what):
            tensors = _read_parts(path, model)
    else:
        device = str(next(model.parameters()).device)
        for module, name in ((model, _MODEL), (averaged, _AVERAGE)):
            if module is not None:
                with reading(path / name, what):
                    load_model(module, str(path / name), device=device)
        with reading(path / _OPTIMIZER, what):
            tensors = load_file(path / _OPTIMIZER)
    indices = {name: index for index, name in enumerate(_parameter_names(model, optimizer))}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        state.setdefault(indices[name], {})[kind] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


@torch.no_grad()
def _read_parts(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """Fill the model from the safetensors of a folder, whole or in parts, as this process needs them.

    Returns what the files have for its parameters, keyed `KIND/PARAMETER NAME`.
    """
    from torch.distributed import checkpoint as parts

    targets, parameters = model.state_dict(keep_vars=True), dict(model.named_parameters())
    reader = parts.HuggingFaceStorageReader(str(folder))
    found: dict[str, Any] = reader.read_metadata().state_dict_metadata
    state = {}
    for key, described in found.items():
        kind, slash, name = key.partition("/")
        if slash:  # AdamW's count of updates is one number, all else has the parameter's shape
            state[key] = torch.zeros(described.size) if kind == "step" else torch.zeros_like(parameters[name])
    # Of several names for one tensor one is in the files.
    wanted = {name: tensor for name, tensor in targets.items() if name in found}
    missing = {id(tensor) for tensor in targets.values()} - {id(tensor) for tensor in wanted.values()}
    shapes = {name: tuple(found[name].size) for name in wanted}
    if missing or any(shapes[name] != tuple(tensor.shape) for name, tensor in wanted.items()):
        raise InputError(f"{folder} has not the weights of this model")
    with _first_failure(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it is meant to be
        parts.load({**wanted, **state}, storage_reader=reader, no_dist=not distributed.is_initialized())
    return state


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raise what went wrong in one of the processes in place of a report on all of them."""
    from torch.distributed import checkpoint as parts

    try:
        yield
    except parts.CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"), reverse=True)


def _check(path: Path) -> Checkpoint:
    file = path / _STATE
    try:
        state = read_stored(file, _State, "the state of a run").model_dump(exclude_unset=True)
        expected: dict[str, str] = state.pop("sha256")
        tensors = set(expected) - {_AVERAGE, _STATE}
        shards = tensors and all(name.startswith("shard-") for name in tensors)
        if _STATE not in expected or not (shards or tensors == {_MODEL, _OPTIMIZER}):
            raise ValueError("entries are missing")
        if expected.pop(_STATE) != _digest(state):
            raise ValueError("its checksum does not match")
        checkpoint = Checkpoint(path, state)
        for name, digest in expected.items():
            file = path / name
            if sha256(file) != digest:
                raise ValueError("its checksum does not match")
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is damaged ({first_line(error)})") from error
    return checkpoint


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = _parameter_names(model, optimizer)
    return {
        f"{kind}/{names[index]}": tensor.contiguous()
        for index, values in optimizer.state_dict()["state"].items()
        for kind, tensor in values.items()
    }


def _parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the optimizer's parameters, in the order of its groups, which is that of its state."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]

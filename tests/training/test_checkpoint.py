"""Checkpoints: exact, complete or absent, checked when read, harmless when the disk is full."""

import errno
import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from nadaraya import files
from nadaraya.errors import InputError
from nadaraya.files import WriteFailed
from nadaraya.training import checkpoint as checkpoints
from nadaraya.training.checkpoint import (
    drop_later_checkpoints,
    drop_old_checkpoints,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
    write_tensors,
)


def _trained(steps: int) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(steps):
        _update(model, optimizer)
    return model, optimizer


def _update(model: nn.Module, optimizer: torch.optim.AdamW) -> None:
    model(torch.eye(3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_loading_gives_back_weights_buffers_and_optimizer_exactly(tmp_path: Path) -> None:
    model, optimizer = _trained(3)
    save_checkpoint(tmp_path, model, optimizer, {"step": 3, "losses": [0.1, 1 / 3]})
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.state["losses"]) == (3, [0.1, 1 / 3])
    restored, restored_optimizer = _trained(0)
    load_checkpoint(found, restored, restored_optimizer)
    _update(model, optimizer)
    _update(restored, restored_optimizer)
    for (name, ours), theirs in zip(model.state_dict().items(), restored.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_the_newest_are_kept_and_the_one_that_is_spared(tmp_path: Path) -> None:
    model, optimizer = _trained(1)
    for step in (1, 2, 3, 30):
        newest = save_checkpoint(tmp_path, model, optimizer, {"step": step})
        drop_old_checkpoints(newest, 2, spared=1)
    assert _names(tmp_path) == ["step-00000001", "step-00000003", "step-00000030"]


def test_a_checkpoint_of_an_update_or_before_is_found_or_refused(tmp_path: Path) -> None:
    model, optimizer = _trained(1)
    for step in (2, 5):
        save_checkpoint(tmp_path, model, optimizer, {"step": step})
    found = find_checkpoint(tmp_path, until=4)
    assert found is not None
    assert found.step == 2
    with pytest.raises(InputError, match="no checkpoint from before update 1"):
        find_checkpoint(tmp_path, until=1)
    drop_later_checkpoints(found.path)
    assert _names(tmp_path) == ["step-00000002"]


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "absent") is None


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("harm", ["truncated", "flipped", "absent"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, harm: str
) -> None:
    model, optimizer = _trained(1)
    save_checkpoint(tmp_path, model, optimizer, {"step": 1})
    path = save_checkpoint(tmp_path, model, optimizer, {"step": 2}) / file
    content = path.read_bytes()
    if harm == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif harm == "flipped":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 255]) + content[-2:])
    else:
        path.unlink()
    with caplog.at_level(logging.WARNING):
        found = find_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1
    assert str(path) in caplog.text


def test_when_all_are_damaged_nothing_is_guessed(tmp_path: Path) -> None:
    model, optimizer = _trained(1)
    path = save_checkpoint(tmp_path, model, optimizer, {"step": 1}) / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"step-00000001/model\.safetensors is damaged"):
        find_checkpoint(tmp_path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    model, optimizer = _trained(1)
    save_checkpoint(tmp_path, model, optimizer, {"step": 1})
    found = find_checkpoint(tmp_path)
    other = nn.Linear(3, 4)
    assert found is not None
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read as a checkpoint of this run"):
        load_checkpoint(found, other, torch.optim.AdamW(other.parameters()))


def test_leftovers_of_a_killed_write_are_no_checkpoint(tmp_path: Path) -> None:
    leftover = tmp_path / f"{files.PARTIAL}abc" / "step-00000002"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    assert find_checkpoint(tmp_path) is None


def test_a_later_damaged_checkpoint_does_not_push_out_the_one_just_saved(tmp_path: Path) -> None:
    model, optimizer = _trained(1)
    (save_checkpoint(tmp_path, model, optimizer, {"step": 6}) / "model.safetensors").write_bytes(b"")
    drop_old_checkpoints(save_checkpoint(tmp_path, model, optimizer, {"step": 5}), kept=1)
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 5


def test_a_full_disk_loses_nothing_already_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = _trained(1)
    save_checkpoint(tmp_path, model, optimizer, {"step": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for module, written in ((checkpoints, "save_model"), (checkpoints, "save_file"), (files, "sync")):
        with monkeypatch.context() as patched:
            patched.setattr(module, written, full)
            with pytest.raises(
                WriteFailed, match=r"step-00000002: the disk is full; what was saved before is intact"
            ):
                save_checkpoint(tmp_path, model, optimizer, {"step": 2})
        assert _names(tmp_path) == ["step-00000001"]
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_parts_of_a_checkpoint_are_written_and_read_or_refused_in_one_line(tmp_path: Path) -> None:
    model, optimizer = _trained(3)
    write_tensors(tmp_path, model, optimizer)
    save_checkpoint(tmp_path, model, optimizer, {"step": 3}, sharded=True)
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert [name for name in _names(found.path) if not name.startswith("shard-")] == ["state.json"]
    restored, restored_optimizer = _trained(0)
    load_checkpoint(found, restored, restored_optimizer)
    for trained, its in ((model, optimizer), (restored, restored_optimizer)):
        _update(trained, its)
    for (name, ours), theirs in zip(model.state_dict().items(), restored.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    other = nn.Linear(3, 4)
    with pytest.raises(InputError, match=r"cannot be read as a checkpoint of this run|has not the weights"):
        load_checkpoint(found, other, torch.optim.AdamW(other.parameters()))
    (tmp_path / "file").touch()
    with pytest.raises(WriteFailed, match="cannot write"):
        write_tensors(tmp_path / "file", model, optimizer)


def test_no_file_of_a_checkpoint_can_run_code(tmp_path: Path) -> None:
    model, optimizer = _trained(1)
    path = save_checkpoint(tmp_path, model, optimizer, {"step": 1})
    assert _names(path) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    json.loads((path / "state.json").read_text())

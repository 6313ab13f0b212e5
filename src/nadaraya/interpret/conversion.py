"""Surgery on positions: a trained model gets the banks that its heads imply, and loses its rotations."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.errors import InputError, check_at_least, check_name, must_be
from nadaraya.files import write_into
from nadaraya.interpret.implied import fitted_kernels
from nadaraya.interpret.windows import Windows, windows_of
from nadaraya.models import KernelBankAdapter, attach_kernel_bank, extend_context
from nadaraya.models.gated import GatedKernel
from nadaraya.models.kernel_bank import BANK_FOLDER

Positions = Literal["bank", "none", "rotary"]
# What "linear" scaling divides angles by: none is left in float32, and any transformers reads it.
_STILL = 1e12
_OF_ANGLES = ("rope_theta", "partial_rotary_factor")


@dataclass(frozen=True)
class Conversion:
    """A converted model and its loss after each step."""

    model: Any  # of transformers; with "bank" the adapter is attached
    adapter: KernelBankAdapter | None  # its bank; None without one
    losses: dict[str, float]  # validation loss in nats/token by step, in order
    r2: tuple[tuple[float, ...], ...]  # (layers, H) R² of the banks on the implied kernels; () without one
    positions: Positions  # what the model has now

    def save(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Write the model as transformers reads it, and a tokenizer, into a folder that is new or empty.

        Its bank, which `KernelBankAdapter` reads, goes into the folder "bank" there, and out of the model.
        """
        with write_into(Path(folder)) as scratch:
            if self.adapter is not None:
                self.adapter.save_pretrained(scratch / BANK_FOLDER)
                self.adapter.detach()
            if self.positions != "rotary":
                config, still = self.model.config, {"rope_type": "linear", "factor": _STILL}
                config.rope_parameters = {
                    key: value for key, value in config.rope_parameters.items() if key in _OF_ANGLES
                } | still
            self.model.save_pretrained(scratch)
            if tokenizer is not None:
                tokenizer.save_pretrained(scratch)


def convert_model(
    model: Any,
    tokens: Tensor,
    *,
    context: int,
    positions: Positions = "bank",
    num_terms: int = 4,
    updates: int = 300,
    batch_size: int = 8,
    learning_rate: float = 3e-4,
    windows: int = 32,
    seed: int = 0,
    progress: Callable[[str, float], None] = lambda step, loss: None,
) -> Conversion:
    """Replace the rotary positions of a trained causal model by kernel banks, and recalibrate it.

    A bank is fitted to the logits by lag that each head implies (`implied_kernels`), and added to them with
    a gate of 1; rotations stop; all parameters learn for some updates. The controls are the same without
    a bank (DroPE, Gelberg et al. 2025), and with the rotations: what the updates bring alone.

    Args:
        model: a causal model of transformers with rotary positions, as `extend_context` takes. It is changed.
        tokens: (n,) of a text; nine tenths are trained on, the last tenth gives the losses.
        context: tokens of a window.
        positions: "bank" (default), or a control: "none", or "rotary", which changes no position.
        num_terms: of a head's bank. Default 4.
        updates: of AdamW, with a linear decay to 0. Default 300; 0 for none.
        batch_size: windows of an update. Default 8.
        learning_rate: the first, ten times as much for banks and gates. Default 3e-4.
        windows: of the validation text, for the losses; a half of them for the implied kernels. Default 32.
        seed: of the windows that are trained on. Default 0.
        progress: called with each step and its loss.
    """
    check_name("positions", positions, get_args(Positions))
    check_at_least(0, updates=updates)
    check_at_least(1, batch_size=batch_size)
    check_at_least(4, windows=windows)
    if not 0.0 < learning_rate < math.inf:
        raise must_be("learning_rate", "finite and above 0", learning_rate)
    if any(isinstance(part, (KernelSelfAttention, GatedKernel)) for part in model.modules()):
        raise must_be("model", "one of transformers' own, with nothing of this library", type(model).__name__)
    if updates and positions != "bank" and not any(p.requires_grad for p in model.parameters()):
        raise must_be("model", "one with parameters that learn", type(model).__name__)
    extend_context(model, "drop").close()  # refuses models without rotations before anything else happens
    border = len(tokens) - len(tokens) // 10
    held_out = windows_of(tokens[border:], context + 1, windows).to(next(model.parameters()).device)
    windows_held = Windows(held_out[:, :-1], held_out[:, 1:])
    losses: dict[str, float] = {}

    def measure(step: str) -> None:
        model.eval()
        losses[step] = windows_held.loss(model)
        progress(step, losses[step])
        if not math.isfinite(losses[step]):
            raise InputError(f"{step}: the loss is {losses[step]}; a lower learning_rate may keep it finite")

    def recalibrate() -> None:
        """Train all parameters on windows drawn at random."""
        of_banks = [] if adapter is None else list(adapter.parameters())
        known = {id(parameter) for parameter in of_banks}
        others = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
        of_bank = {"params": of_banks, "lr": 10 * learning_rate, "weight_decay": 0.0}
        groups = [{"params": others, "lr": learning_rate}, of_bank]
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, updates)
        generator = torch.Generator().manual_seed(seed)
        model.train()
        for _ in range(updates):
            starts = torch.randint(border - context, (batch_size, 1), generator=generator)
            rows = tokens[starts + torch.arange(context)].to(held_out.device)
            optimizer.zero_grad()
            model(input_ids=rows, labels=rows, use_cache=False).loss.backward()
            torch.nn.utils.clip_grad_norm_(others + of_banks, 1.0)
            optimizer.step()
            schedule.step()

    measure("as it is")
    adapter: KernelBankAdapter | None = None
    r2: tuple[tuple[float, ...], ...] = ()
    if positions == "bank":
        looked_at = windows_of(tokens[:border], context, max(2, windows // 2))
        _, fits = fitted_kernels(model, looked_at, num_terms, added=True)
        r2 = tuple(tuple(bank.r2.tolist()) for bank, _ in fits)
        adapter = attach_kernel_bank(model, f"bank-{num_terms}", freeze=False)
        if len(adapter.banks) != len(fits):
            adapter.detach()
            raise InputError(f"{type(model).__name__} must call each of its attention layers once")
        for gated, (bank, _) in zip(adapter.banks, fits, strict=True):
            gated.get_submodule("kernel").load_state_dict(bank.bank.state_dict())
    if positions != "rotary":
        extend_context(model, "drop")
        measure("rotations dropped")
    if adapter is not None:
        with torch.no_grad():
            for gated in adapter.banks:
                gated.get_parameter("gate").fill_(1.0)
        measure("bank in their place")
    if updates:
        recalibrate()
        measure(f"after {updates:,} updates")
    return Conversion(model, adapter, losses, r2, positions)

"""AdamW, or Muon and AdamW, over groups of parameters; the learning-rate schedules of language models."""

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from nadaraya.errors import must_be
from nadaraya.training.kernels import kernel_parameters
from nadaraya.training.optimisation import BaseTraining
from nadaraya.training.text_recipe import TrainingRecipe


def make_optimizer(model: nn.Module, options: BaseTraining) -> torch.optim.Optimizer:
    """The recipe's optimizer over `parameter_groups`, at the highest learning rate; a schedule changes it."""
    groups, lr = parameter_groups(model, options), options.peak_learning_rate
    if options.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=options.betas)
    if not any(group["name"] == "hidden" for group in groups):
        raise must_be(
            "recipe key training.optimizer", "adamw for a model without linear layers in blocks", "muon"
        )
    return MuonAndAdamW(groups, lr, options.betas)


class MuonAndAdamW(torch.optim.Optimizer):
    """PyTorch's Muon for the group named "hidden", its AdamW for all others, as one optimizer.

    One schedule and one checkpoint serve both. Muon (Jordan et al. 2024) has the momentum of nanochat, 0.95
    by Nesterov's rule, and PyTorch's `adjust_lr_fn="original"`: a weight of m outputs and n inputs moves by
    about √max(1, m / n) times the learning rate in spectral norm.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float]) -> None:
        hidden = [group for group in groups if group["name"] == "hidden"]
        others = [group for group in groups if group["name"] != "hidden"]
        muon = torch.optim.Muon(hidden, lr=lr, momentum=0.95, nesterov=True, adjust_lr_fn="original")
        self._parts = (muon, torch.optim.AdamW(others, lr=lr, betas=betas))
        super().__init__([*others, *hidden], {})
        self._share()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; there is no closure."""
        for part in self._parts:
            part.step()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Let the parts work on the groups and the state of the whole, which loading replaces."""
        for part in self._parts:
            muon = isinstance(part, torch.optim.Muon)
            part.state = self.state
            part.param_groups = [group for group in self.param_groups if (group["name"] == "hidden") is muon]


def parameter_groups(model: nn.Module, options: BaseTraining) -> list[dict[str, Any]]:
    """Split the model's trainable parameters into groups, each parameter in exactly one.

    - `matrices`: weights of linear layers and convolutions; weight decay.
    - `hidden`: with Muon, the weights of linear layers inside of blocks, taken from `matrices`; weight decay,
      a learning rate of their own. Blocks are what the model repeats in a `ModuleList` or `Sequential`, so
      that the output layer and the patches of an image are no part of them.
    - `plain`: vectors, embedding tables and what timm's `no_weight_decay` of the model names; no decay.
      Embedding rows are left out because a row that a batch does not mention would shrink all the same. A
      table tied to the output layer counts as one.
    - `kernels`: `model.kernel_parameters()`; no decay, its own learning rate. Decay would pull log-bandwidths
      towards 1 token, which is a choice of kernel and no regularisation.

    Each has its `name` and, as timm's schedules read it, the learning rate relative to the others' as
    `lr_scale`; empty ones are left out.
    """
    kernels = {id(parameter) for _, parameter in kernel_parameters(model)}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    hidden = _hidden_weights(model) if options.optimizer == "muon" else set()
    exempt: set[str] = getattr(model, "no_weight_decay", set)()
    members: dict[str, list[nn.Parameter]] = {"matrices": [], "hidden": [], "plain": [], "kernels": []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in kernels:
            members["kernels"].append(parameter)
        elif parameter.ndim >= 2 and id(parameter) not in tables and name not in exempt:
            members["hidden" if id(parameter) in hidden else "matrices"].append(parameter)
        else:
            members["plain"].append(parameter)
    scales = {"kernels": options.kernel_rate_scale, "hidden": options.matrix_rate_scale}
    return [
        {
            "name": name,
            "params": parameters,
            "lr_scale": scales.get(name, 1.0),
            "weight_decay": options.weight_decay if name in ("matrices", "hidden") else 0.0,
        }
        for name, parameters in members.items()
        if parameters
    ]


def _hidden_weights(model: nn.Module) -> set[int]:
    """Identities of the weights of linear layers in repeated blocks."""
    repeated = (module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential))
    layers = (layer for blocks in repeated for layer in blocks.modules())
    return {id(layer.weight) for layer in layers if isinstance(layer, nn.Linear)}


def make_schedule(optimizer: torch.optim.Optimizer, recipe: TrainingRecipe, done: int = 0) -> LRScheduler:
    """Linear warm-up and the decay of `recipe.schedule`: the same factor on every group's own learning rate.

    The rates are set to those of the update after `done`, on which alone they depend: a resumed run needs no
    other state. Call `step()` after each update.
    """
    from transformers import get_cosine_with_min_lr_schedule_with_warmup, get_wsd_schedule

    for group in optimizer.param_groups:
        group["initial_lr"] = recipe.learning_rate * group["lr_scale"]
    lowest = recipe.min_learning_rate / recipe.learning_rate
    warmup, steps, last = recipe.warmup_steps, recipe.steps, done - 1
    if recipe.decay_start is None:
        return get_cosine_with_min_lr_schedule_with_warmup(
            optimizer, warmup, steps, min_lr_rate=lowest, last_epoch=last
        )
    falling = steps - recipe.decay_start
    return get_wsd_schedule(
        optimizer, warmup, falling, steps, decay_type="linear", min_lr_ratio=lowest, last_epoch=last
    )

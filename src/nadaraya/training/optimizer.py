"""AdamW over three groups of parameters, and the learning-rate schedule of language models."""

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from nadaraya.training.kernels import kernel_parameters
from nadaraya.training.recipe import TrainingRecipe
from nadaraya.training.schema import BaseTraining


def make_optimizer(model: nn.Module, options: BaseTraining) -> torch.optim.AdamW:
    """AdamW over `parameter_groups`, at the highest learning rate, which a schedule changes."""
    groups = parameter_groups(model, options)
    return torch.optim.AdamW(groups, lr=options.peak_learning_rate, betas=options.betas)


def parameter_groups(model: nn.Module, options: BaseTraining) -> list[dict[str, Any]]:
    """Split the model's trainable parameters into three groups, each parameter in exactly one.

    - `matrices`: weights of linear layers and convolutions; weight decay.
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
    exempt: set[str] = getattr(model, "no_weight_decay", set)()
    members: dict[str, list[nn.Parameter]] = {"matrices": [], "plain": [], "kernels": []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in kernels:
            members["kernels"].append(parameter)
        elif parameter.ndim >= 2 and id(parameter) not in tables and name not in exempt:
            members["matrices"].append(parameter)
        else:
            members["plain"].append(parameter)
    return [
        {
            "name": name,
            "params": parameters,
            "lr_scale": options.kernel_rate_scale if name == "kernels" else 1.0,
            "weight_decay": options.weight_decay if name == "matrices" else 0.0,
        }
        for name, parameters in members.items()
        if parameters
    ]


def make_schedule(optimizer: torch.optim.Optimizer, recipe: TrainingRecipe, done: int = 0) -> LRScheduler:
    """Linear warm-up and cosine decay: the same factor on every group's own learning rate.

    The rates are set to those of the update after `done`, on which alone they depend: a resumed run needs no
    other state. Call `step()` after each update.
    """
    from transformers import get_cosine_with_min_lr_schedule_with_warmup

    for group in optimizer.param_groups:
        group["initial_lr"] = recipe.learning_rate * group["lr_scale"]
    return get_cosine_with_min_lr_schedule_with_warmup(
        optimizer,
        num_warmup_steps=recipe.warmup_steps,
        num_training_steps=recipe.steps,
        min_lr_rate=recipe.min_learning_rate / recipe.learning_rate,
        last_epoch=done - 1,
    )

"""AdamW over three groups of parameters, and the learning-rate schedule they share."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from nadaraya.training.recipe import TrainingRecipe

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTForCausalLM


def parameter_groups(model: "KernelGPTForCausalLM", recipe: TrainingRecipe) -> list[dict[str, Any]]:
    """Split the model's trainable parameters into three groups, each parameter in exactly one.

    - `matrices`: weights of linear layers; weight decay.
    - `plain`: biases, norms and embedding tables; no decay. Embedding rows are left out because a row that a
      batch does not mention would shrink all the same. A table tied to the output layer counts as one.
    - `kernels`: `model.kernel_parameters()`; no decay, its own learning rate. Decay would pull log-bandwidths
      towards 1 token, which is a choice of kernel and no regularisation.

    Args:
        model: the model.
        recipe: learning rates and weight decay.

    Returns:
        Groups for `torch.optim.AdamW`, each with its `name`; empty ones are left out.
    """
    kernels = {id(parameter) for _, parameter in model.kernel_parameters()}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    members: dict[str, list[nn.Parameter]] = {"matrices": [], "plain": [], "kernels": []}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in kernels:
            members["kernels"].append(parameter)
        elif parameter.ndim >= 2 and id(parameter) not in tables:
            members["matrices"].append(parameter)
        else:
            members["plain"].append(parameter)
    return [
        {
            "name": name,
            "params": parameters,
            "lr": _learning_rate(name, recipe),
            "weight_decay": recipe.weight_decay if name == "matrices" else 0.0,
        }
        for name, parameters in members.items()
        if parameters
    ]


def make_optimizer(model: "KernelGPTForCausalLM", recipe: TrainingRecipe) -> torch.optim.AdamW:
    """AdamW over `parameter_groups`."""
    return torch.optim.AdamW(parameter_groups(model, recipe), betas=recipe.betas)


def make_schedule(optimizer: torch.optim.Optimizer, recipe: TrainingRecipe, done: int = 0) -> LRScheduler:
    """Linear warm-up and cosine decay, the same factor on every group's own learning rate.

    Args:
        optimizer: from `make_optimizer`; its learning rates are set to those of the next update.
        recipe: warm-up, number of steps, and the learning rate that the cosine ends on.
        done: updates already made, default 0. The factor depends on this number alone, so that a resumed run
            needs no other state.

    Returns:
        The scheduler; call `step()` after each update.
    """
    from transformers import get_cosine_with_min_lr_schedule_with_warmup

    for group in optimizer.param_groups:
        group["initial_lr"] = _learning_rate(group["name"], recipe)
    return get_cosine_with_min_lr_schedule_with_warmup(
        optimizer,
        num_warmup_steps=recipe.warmup_steps,
        num_training_steps=recipe.steps,
        min_lr_rate=recipe.min_learning_rate / recipe.learning_rate,
        last_epoch=done - 1,
    )


def _learning_rate(group: str, recipe: TrainingRecipe) -> float:
    """The highest learning rate of a group, by its name."""
    if group == "kernels" and recipe.kernel_learning_rate is not None:
        return recipe.kernel_learning_rate
    return recipe.learning_rate

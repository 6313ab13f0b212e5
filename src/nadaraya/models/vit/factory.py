"""Image models by name: the one place where timm's models are built, ours among them."""

import inspect
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import timm
import torch
from torch import nn

from nadaraya.errors import InputError, must_be, shown, unknown_name

# Keywords of `timm.create_model` that load weights.
_WEIGHTS = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")
# What timm and its models raise when their options do not fit together.
_REFUSALS = (TypeError, ValueError, AssertionError, RuntimeError, KeyError, AttributeError, ArithmeticError)


def is_image_model(name: str) -> bool:
    """Test whether timm has a model of that name, with a tag of weights or none; not an address on a hub."""
    return ":" not in name and "/" not in name and timm.is_model(name.split(".")[0])


def create_image_model(
    name: str,
    *,
    image_size: int | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
) -> nn.Module:
    """A model of timm with fresh weights, drawn from torch's global generator, in eval mode.

    Args:
        name: any name of `timm.list_models()`, "gka_…" and "vlt_…" among them.
        image_size: pixels per side; default the model's own. Models that take images of any size ignore it.
        options: further keywords of `timm.create_model`, such as {"pattern": "GGGA"} or {"num_classes": 10}.
        device: where it is made; "meta" gives shapes without weights.

    Returns:
        Maps (B, channels, S, S) images to (B, num_classes) logits.

    Raises:
        InputError: an unknown name, options that the model does not have or accept, or an image size that is
            no multiple of its patches.

    >>> from nadaraya.models.vit import create_image_model
    >>> model = create_image_model("gka_tiny_patch16_224", options={"num_classes": 10}, device="meta")
    >>> model.num_classes
    10
    """
    if not is_image_model(name):
        # Names end in patch and image sizes, which nobody mistypes: the beginning decides.
        starts = {known[: len(name) + 1]: known for known in reversed(timm.list_models())}
        nearest = get_close_matches(name, starts, n=1)
        hint = f": did you mean {starts[nearest[0]]!r}?" if nearest else ""
        raise InputError(f"model must be a name of timm.list_models(), got {shown(name)}{hint}")
    keywords = dict(options or {})
    for option in keywords:
        if option in _WEIGHTS:
            raise InputError(f"option {option} must be left out: models are built with fresh weights")
    try:
        # Models of a fixed input size are the ones that must be told it.
        config = timm.get_pretrained_cfg(name)
        if image_size is not None and config is not None and config.fixed_input_size:
            keywords.setdefault("img_size", image_size)
        with torch.device(device):
            model: nn.Module = timm.create_model(name, **keywords).eval()
    except InputError:
        raise
    except _REFUSALS as error:
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected is not None and unexpected[1] in keywords:
            raise _unknown_option(name, unexpected[1], keywords) from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{name} cannot be built with the options {shown(keywords)}: {reason}") from error
    _check_patches(model, name, image_size)
    return model


def image_shape(model: nn.Module, image_size: int | None = None) -> tuple[int, int, int]:
    """Channels, rows and columns of the images that a model of timm takes.

    The side is `image_size`; by default what the model was built for, else what timm notes as its input.
    """
    noted = getattr(model, "pretrained_cfg", {})
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    channels, height, width = noted.get("input_size") or (3, 224, 224)
    channels = channels if first is None else first.in_channels
    built = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if image_size is not None:
        height = width = image_size
    elif built is not None:
        height, width = built
    return channels, height, width


def _unknown_option(name: str, option: str, given: Mapping[str, Any]) -> InputError:
    """The refusal of a keyword, with the nearest one that the model's classes have."""
    if option == "drop_path_rate":
        return must_be(option, f"0 for {name}, which has no stochastic depth", given[option])
    with torch.device("meta"):
        model = timm.create_model(name)
    accepted = {
        parameter.name
        for kind in type(model).__mro__
        if kind is not nn.Module and "__init__" in vars(kind)
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    return unknown_name(f"option of {name}", option, accepted)


def _check_patches(model: nn.Module, name: str, image_size: int | None) -> None:
    """Patches that do not divide the image would silently leave its edge out."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    for side in patch if isinstance(patch, tuple) and image_size is not None else ():
        if image_size % side:
            accepted = f"a multiple of the patches of {name} ({side} pixels, option patch_size)"
            raise must_be("image_size", accepted, image_size)

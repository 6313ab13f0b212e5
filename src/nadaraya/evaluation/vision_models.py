"""Image models of timm by name, ours among them, and what they take (needs the `vision` extra)."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nadaraya.errors import InputError

if TYPE_CHECKING:
    from types import ModuleType


def load_timm() -> "ModuleType":
    """timm with the models of nadaraya registered in it.

    Raises:
        InputError: it is not installed.
    """
    try:
        import_module("nadaraya.models.vit")  # before timm: torchvision may need its help
        return import_module("timm")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "nadaraya":
            raise
        raise InputError(f'image models need {missing.name}: pip install "nadaraya[vision]"') from missing


def is_image_model(name: str) -> bool:
    """Whether timm has a model of that name, with or without a tag of weights; places on a hub are none."""
    return ":" not in name and "/" not in name and bool(load_timm().is_model(name.split(".")[0]))


def nearest_image_model(name: str) -> str | None:
    """The name of timm that is most like an unknown one, if any is."""
    # Names end in patch and image sizes, which nobody mistypes: the beginning decides.
    starts = {known[: len(name) + 1]: known for known in reversed(load_timm().list_models())}
    nearest = get_close_matches(name, starts, n=1)
    return starts[nearest[0]] if nearest else None


def create_image_model(
    name: str,
    *,
    image_size: int | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
) -> nn.Module:
    """A model of timm with random weights, in eval mode.

    Args:
        name: any name of `timm.list_models()`, "gka_…" and "vlt_…" among them.
        image_size: pixels a side, for models that are built for one size (`img_size` of timm); default the
            model's own.
        options: further keywords of `timm.create_model`, such as {"pattern": "GGGA"} or {"num_classes": 10}.
        device: where it is made; "meta" gives shapes without weights.

    Returns:
        The model.

    Raises:
        InputError: an unknown name, or keywords that the model does not take.
    """
    timm = load_timm()
    if not is_image_model(name):
        nearest = nearest_image_model(name)
        hint = f": did you mean {nearest!r}?" if nearest else ""
        raise InputError(f"timm has no model {name!r}{hint}")
    keywords = dict(options or {})
    try:
        with torch.device(device):
            if image_size is None or "img_size" in keywords:
                return timm.create_model(name, **keywords).eval()
            try:
                return timm.create_model(name, img_size=image_size, **keywords).eval()
            except TypeError as error:  # convolutional networks take images of any size
                if "img_size" not in str(error):
                    raise
                return timm.create_model(name, **keywords).eval()
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{name} cannot be built with the options {keywords}: {reason}") from error


def image_shape(model: nn.Module, image_size: int | None = None) -> tuple[int, int, int]:
    """Channels, rows and columns of the images that a model takes.

    Args:
        model: a model of timm.
        image_size: pixels a side; default what the model was built for, else what timm notes as its input.

    Returns:
        (C, height, width).
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


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that are attention by the name of their class, pooling excepted."""
    return _outermost(model, ("Attention", "Attn"), ("Pool",))


def mlp_modules(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that are feed-forward networks by the name of their class."""
    return _outermost(model, ("Mlp", "MLP", "SwiGLU"), ("Mixer",))


def _outermost(model: nn.Module, words: Iterable[str], others: Iterable[str]) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in model.children():
        name = type(child).__name__
        if any(word in name for word in words) and not any(word in name for word in others):
            found.append(child)
        else:
            found.extend(_outermost(child, words, others))
    return found

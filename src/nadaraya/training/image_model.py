"""timm models by name, for recipes: what a recipe asks that a model does not have is refused in one line."""

import inspect
import re
from importlib.util import find_spec
from typing import Any

from torch import nn

from nadaraya.errors import InputError, unknown_name
from nadaraya.training.image_recipe import ImageModelRecipe

# Keywords of `timm.create_model` that the recipe sets by other keys, and those that bring in weights.
_SET_ELSEWHERE = {
    "img_size": "model.image_size",
    "drop_path_rate": "model.drop_path",
    "num_classes": "the images",
    "in_chans": "the images",
}
_FRESH = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")


def build_image_model(recipe: ImageModelRecipe, num_classes: int, channels: int) -> nn.Module:
    """The timm model of a recipe with freshly initialised weights, drawn from torch's global generator.

    Args:
        recipe: name, image size, stochastic depth and options.
        num_classes: of the images.
        channels: of the images, 1 or 3.

    Returns:
        Maps (B, channels, S, S) images to (B, num_classes) logits.

    Raises:
        InputError: no such model, an option that it does not have or accept, or an image size that is no
            multiple of its patches.
    """
    check_vision()
    import timm

    import nadaraya.models.vit  # noqa: F401 - registers our models

    _check_name(recipe.name)
    for option in recipe.options:
        if option in _SET_ELSEWHERE:
            raise InputError(f"model.options.{option} is not accepted: it is set by {_SET_ELSEWHERE[option]}")
        if option in _FRESH:
            raise InputError(f"model.options.{option} is not accepted: training starts from fresh weights")
    options: dict[str, Any] = {"num_classes": num_classes, "in_chans": channels, **recipe.options}
    if recipe.drop_path:
        options["drop_path_rate"] = recipe.drop_path
    # Models of a fixed input size are the ones that must be told it.
    config = timm.get_pretrained_cfg(recipe.name)
    if config is not None and config.fixed_input_size:
        options["img_size"] = recipe.image_size
    try:
        model: nn.Module = timm.create_model(recipe.name, **options)
    except InputError as error:
        raise InputError(f"model {recipe.name}: {error}") from error
    except TypeError as error:
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected is None:
            raise InputError(_cannot_build(recipe, error)) from error
        raise _unknown_option(recipe, unexpected[1]) from error
    except (ValueError, AssertionError, RuntimeError, KeyError, AttributeError, ArithmeticError) as error:
        raise InputError(_cannot_build(recipe, error)) from error
    _check_size(model, recipe)
    return model


def check_vision() -> None:
    """Refuse to go on without the libraries of the `vision` extra."""
    for library in ("torchvision", "timm"):
        if find_spec(library) is None:
            raise InputError(f'images need {library}: pip install "nadaraya[vision]"')


def _check_name(name: str) -> None:
    from nadaraya.evaluation.vision_models import is_image_model, nearest_image_model

    if not is_image_model(name):
        nearest = nearest_image_model(name)
        hint = f"did you mean {nearest!r}? " if nearest else ""
        raise InputError(f"unknown model.name {name!r}: {hint}accepted are the names of timm.list_models()")


def _unknown_option(recipe: ImageModelRecipe, option: str) -> InputError:
    """The refusal of a keyword, with the nearest one that the model's classes have."""
    import timm
    import torch

    if option == "drop_path_rate":
        return InputError(
            f"model.drop_path = {recipe.drop_path}: {recipe.name} has no stochastic depth, accepted is 0"
        )
    with torch.device("meta"):
        model = timm.create_model(recipe.name)
    accepted = {
        name
        for kind in type(model).__mro__
        if kind is not nn.Module and "__init__" in vars(kind)
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    return unknown_name(f"option of {recipe.name} in model.options", option, accepted - {*_SET_ELSEWHERE})


def _cannot_build(recipe: ImageModelRecipe, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"timm cannot make {recipe.name} of model.options = {recipe.options}: {reason}"


def _check_size(model: nn.Module, recipe: ImageModelRecipe) -> None:
    """Patches that do not divide the image would silently leave its edge out."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    for side in patch if isinstance(patch, tuple) else ():
        if recipe.image_size % side:
            raise InputError(
                f"model.image_size = {recipe.image_size} is not a multiple of the patches of {recipe.name}, "
                f"{side} pixels wide: model.options.patch_size sets their width"
            )

"""The model of an image recipe."""

from typing import TYPE_CHECKING

from torch import nn

from nadaraya.errors import InputError

if TYPE_CHECKING:
    from nadaraya.training.image_recipe import ImageModelRecipe

# Options of the model that the recipe sets by other keys.
_SET_ELSEWHERE = {
    "img_size": "model.image_size",
    "drop_path_rate": "model.drop_path",
    "num_classes": "the images",
    "in_chans": "the images",
}


def build_image_model(recipe: "ImageModelRecipe", num_classes: int, channels: int) -> nn.Module:
    """The timm model of a recipe with fresh weights, in training mode; see `create_image_model`.

    Args:
        recipe: name, image size, stochastic depth and options.
        num_classes: of the images.
        channels: of the images, 1 or 3.

    Returns:
        Maps (B, channels, S, S) images to (B, num_classes) logits.

    Raises:
        InputError: no such model, or it does not take what the recipe asks for.
    """
    from nadaraya.models.vit import create_image_model

    for option in recipe.options:
        if option in _SET_ELSEWHERE:
            raise InputError(
                f"model.options.{option} must be left out: it is set by {_SET_ELSEWHERE[option]}"
            )
    options = {"num_classes": num_classes, "in_chans": channels, **recipe.options}
    if recipe.drop_path:
        options["drop_path_rate"] = recipe.drop_path
    return create_image_model(recipe.name, image_size=recipe.image_size, options=options).train()

"""The images of a recipe."""

from dataclasses import replace

import numpy as np
from PIL import Image

from nadaraya.data.images import ImageSet, ImageSource, open_images
from nadaraya.errors import must_be
from nadaraya.training.image_recipe import ImageRecipe

_LIMIT_SEED = 0  # of the images that data.limit leaves: the same for every run


class LimitedImages(ImageSource):
    """Some images of a source, drawn once for all.

    Args:
        source: where they come from.
        count: how many; all where there are fewer.
    """

    def __init__(self, source: ImageSource, count: int) -> None:
        drawn = np.random.default_rng(_LIMIT_SEED).permutation(len(source))[:count]
        self._source, self._numbers = source, np.sort(drawn)
        super().__init__(source.labels[self._numbers], source.channels)

    def name(self, index: int) -> str:
        """As in the source."""
        return self._source.name(int(self._numbers[index]))

    def digest(self) -> bytes:
        """That of the source and of the numbers."""
        return self._source.digest() + self._numbers.tobytes()

    def _open(self, index: int) -> Image.Image:
        return self._source._open(int(self._numbers[index]))


def open_recipe_images(recipe: ImageRecipe) -> ImageSet:
    """The images of a recipe.

    Raises:
        InputError: there are none, or they cannot be read.
    """
    data = recipe.data
    if data.source is None:
        accepted = "a folder of images, tar shards, an .npz file or a set such as torchvision:CIFAR10"
        raise must_be("recipe key data.source", accepted, None)
    images = open_images(data.source, validation=data.validation, corrupt=data.corrupt)
    return replace(images, train=LimitedImages(images.train, data.limit)) if data.limit else images

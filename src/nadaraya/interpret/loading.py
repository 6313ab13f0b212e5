"""Models that maps are made of, with what turns files into their inputs and their outputs into names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from nadaraya.errors import InputError, must_be
from nadaraya.files import reading
from nadaraya.interpret.bandwidths import bandwidth_matrix

if TYPE_CHECKING:
    from nadaraya.training import Run


@dataclass(frozen=True)
class ImageModel:
    """A vision model with what it needs to look at an image file and to name what it sees.

    Attributes:
        name: of the model or the run.
        model: maps (B, C, height, width) to (B, classes) logits; in eval mode.
        transform: makes the input (C, height, width) of a PIL image.
        mean: of the channels, which inputs are normalised with.
        std: the same, their deviation.
        class_name: the name of a class by its number.
        facts: (name, value) pairs that say where it comes from.
        sigma_start: (H, L) bandwidths before training, as `bandwidth_matrix` gives them; default not known.

    >>> import torch
    >>> from nadaraya.interpret import ImageModel
    >>> classes = ["cat", "dog"].__getitem__
    >>> model = ImageModel("m", torch.nn.Identity(), lambda image: image, (0.5,), (0.5,), classes)
    >>> model.top_k(torch.tensor([0.0, 10.0]), k=1)
    [('dog', 0.9999...)]
    """

    name: str
    model: nn.Module
    transform: Callable[[Any], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_name: Callable[[int], str]
    facts: tuple[tuple[str, str], ...] = ()
    sigma_start: np.ndarray | None = None

    @classmethod
    def from_run(cls, run: "Run") -> "ImageModel":
        """The trained model of a finished run on images, with its averaged weights where it keeps them.

        Raises:
            InputError: it is a run on text, not finished, or damaged.
        """
        from nadaraya.data.images.transforms import evaluation_transform
        from nadaraya.models.vit.factory import image_shape

        recipe, classes = run.image_recipe(), run.classes
        model, augmentation = run.load_model(), recipe.augmentation()
        channels = image_shape(model)[0]
        mean, std = augmentation.statistics(channels)
        facts = (("Run", run.path.name), ("Model", recipe.model.name))
        transform = evaluation_transform(augmentation, channels)
        start = bandwidth_matrix(run.load_model(initial=True))
        return cls(run.name, model, transform, mean, std, classes.__getitem__, facts, start)

    @classmethod
    def from_timm(cls, model: nn.Module, name: str = "") -> "ImageModel":
        """A model from `timm.create_model`, with the preprocessing of its configuration.

        Raises:
            InputError: it takes images of neither 1 nor 3 channels.
        """
        import timm
        from timm.data import ImageNetInfo, create_transform, resolve_data_config

        from nadaraya.data.images.sources import MODES, to_channels
        from nadaraya.models.vit.factory import image_shape

        shape = image_shape(model)
        if shape[0] not in MODES:
            raise must_be("model", "one of images with 1 or 3 channels", f"{shape[0]} channels")
        config = resolve_data_config({"input_size": shape}, model=model)
        transform = create_transform(**config)
        classes = int(model.num_classes)  # type: ignore[arg-type]
        return cls(
            name or type(model).__name__,
            model.eval(),
            lambda image: transform(to_channels(image, shape[0])),
            tuple(config["mean"]),
            tuple(config["std"]),
            ImageNetInfo().index_to_description if classes == 1000 else lambda number: f"class {number}",
            (("timm", timm.__version__),),
        )

    @classmethod
    def from_checkpoint(
        cls, name: str, checkpoint: str | Path, options: Mapping[str, Any] | None = None
    ) -> "ImageModel":
        """A model of timm by name with the weights of a file, which decide about its classes and channels.

        Args:
            name: any name of `timm.list_models()`, ours among them.
            checkpoint: a .safetensors file.
            options: keywords of `timm.create_model`; default none.

        Raises:
            InputError: an unknown name or option, or weights of another model.
        """
        from safetensors.torch import load_file

        from nadaraya.models.vit import create_image_model

        with reading(Path(checkpoint), "a .safetensors file"):
            weights = load_file(checkpoint)
        sizes = {}
        if "head.weight" in weights:
            sizes["num_classes"] = weights["head.weight"].shape[0]
        if "patch_embed.proj.weight" in weights:
            sizes["in_chans"] = weights["patch_embed.proj.weight"].shape[1]
        model = create_image_model(name, options={**sizes, **(options or {})})
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:  # the first line says nothing, the second names weights, maybe all
            reason = shorten(str(error).splitlines()[1], 200, placeholder=" …")
            raise InputError(f"{checkpoint} is of another model than {name}: {reason}") from error
        loaded = cls.from_timm(model, name)
        return replace(loaded, facts=(("Checkpoint", Path(checkpoint).name), *loaded.facts))

    def preprocess(self, path: str | Path) -> Tensor:
        """The input that an image file becomes, (C, height, width): resized, cropped, normalised.

        Raises:
            InputError: it cannot be read as an image.
        """
        from PIL import Image

        from nadaraya.data.images.sources import reason

        if not Path(path).is_file():
            raise must_be("image", "an image file", str(path))
        try:
            with Image.open(path) as opened:
                return self.transform(opened)
        except (InputError, MemoryError):
            raise
        except Exception as error:  # the exceptions of Pillow's decoders have no common class
            raise InputError(f"cannot read {path} as an image: {reason(error)}") from error

    def picture(self, pixels: Tensor) -> np.ndarray:
        """An input as the model sees it, without its normalisation: (height, width, 3), values 0 … 1."""
        mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (self.mean, self.std))
        return (pixels * std + mean).clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0).numpy()

    def top_k(self, logits: Tensor, k: int = 5) -> list[tuple[str, float]]:
        """The k likeliest classes of (classes,) logits with their probabilities, likeliest first."""
        return _top_k(logits, k, self.class_name)


@dataclass(frozen=True)
class TextModel:
    """A language model with its tokenizer.

    Attributes:
        name: of the run.
        model: a `KernelGPTForCausalLM`, in eval mode.
        tokenizer: that it was trained with.
        facts: (name, value) pairs that say where it comes from.
        sigma_start: (H, L) bandwidths before training, as `bandwidth_matrix` gives them; default not known.

    >>> import torch
    >>> from nadaraya.data import train_character_tokenizer
    >>> from nadaraya.interpret import TextModel
    >>> model = TextModel("m", torch.nn.Identity(), train_character_tokenizer("abc"))
    >>> model.top_k(torch.tensor([0.0, 0.0, 10.0]), k=1)
    [('c', 0.9999...)]
    """

    name: str
    model: Any
    tokenizer: Any
    facts: tuple[tuple[str, str], ...] = ()
    sigma_start: np.ndarray | None = None

    @classmethod
    def from_run(cls, run: "Run") -> "TextModel":
        """The trained model of a finished run on text.

        Raises:
            InputError: it is a run on images, not finished, or damaged.
        """
        from nadaraya.data.tokenizer import check_vocabulary

        tokenizer, model = run.tokenizer(), run.load_model()
        check_vocabulary(tokenizer, model.config.vocab_size)
        start = bandwidth_matrix(run.load_model(initial=True))
        return cls(run.name, model, tokenizer, (("Run", run.path.name),), start)

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, (N,).

        Raises:
            InputError: fewer than 2, more than the context of the model, or a character it does not know.
        """
        from nadaraya.data.tokenizer import encode_text

        ids, context = encode_text(self.tokenizer, text), int(self.model.config.max_position_embeddings)
        if not 2 <= len(ids) <= context:
            accepted = f"a text of 2 to {context:,} tokens, the context of this model"
            raise InputError(f"text must be {accepted}, got {len(ids):,} tokens")
        return ids

    def top_k(self, logits: Tensor, k: int = 5) -> list[tuple[str, float]]:
        """The k likeliest next tokens of (vocabulary,) logits with their probabilities, likeliest first."""
        return _top_k(logits, k, lambda token: str(self.tokenizer.decode([token])))


def _top_k(logits: Tensor, k: int, name: Callable[[int], str]) -> list[tuple[str, float]]:
    chances, numbers = logits.float().softmax(-1).topk(min(k, len(logits)))
    return [(name(number), chance) for number, chance in zip(numbers.tolist(), chances.tolist(), strict=True)]

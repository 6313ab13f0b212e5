"""Non-local blocks of Wang et al. (2018): attention over all places of a convolutional network's feature map.

model = timm.create_model("resnet50", pretrained=True)
insert_non_local(model, stages=(2, 3))
"""

import re
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya.attention.functional import kernel_attention
from nadaraya.errors import check_name, must_be

FORMS = ("embedded", "gaussian", "dot", "concatenation")


class NonLocalBlock(nn.Module):
    """A non-local block on feature maps, an exact identity at first (Wang et al. 2018, eqs. 1–6).

        z_i = x_i + BatchNorm(W_z y_i),   y_i = Σ_j f(x_i, x_j) g(x_j) / C_i

    "embedded", f = exp(θ_i·φ_j) with C_i = Σ_j f, is `kernel_attention` with `content=1.0`, one head;
    "gaussian" is the same with the features themselves, f = exp(x_i·x_j). "dot", f = θ_i·φ_j, and
    "concatenation", f = relu(w·[θ_i, φ_j]), have C_i = N, the number of places j. θ, φ, g and W_z are 1 × 1
    convolutions. "dot" takes O(N) time and memory; "concatenation" O(N²) of both.

    Args:
        channels: C of the maps, at least 2; the head has the width C // 2.
        form: "embedded", "gaussian", "dot" or "concatenation". Default "embedded".
        subsample: whether keys and values are the largest of 2 × 2 places, a quarter as many. Default False.

    Raises:
        InputError: an unknown form, fewer channels than 2, or maps of another shape.

    >>> import torch
    >>> from nadaraya.models.vit.non_local import NonLocalBlock
    >>> maps = torch.randn(2, 8, 7, 5)
    >>> torch.equal(NonLocalBlock(8)(maps), maps)
    True
    """

    def __init__(self, channels: int, form: str = "embedded", subsample: bool = False) -> None:
        super().__init__()
        if not isinstance(channels, int) or channels < 2:
            raise must_be("channels", "a whole number of at least 2", channels)
        check_name("form", form, FORMS)
        width = channels // 2
        self.channels, self.form, self.subsample = channels, form, subsample
        if form != "gaussian":
            self.theta, self.phi = nn.Conv2d(channels, width, 1), nn.Conv2d(channels, width, 1)
        self.g = nn.Conv2d(channels, width, 1)
        if form == "concatenation":
            self.w = nn.Linear(2 * width, 1, bias=False)
        self.out = nn.Conv2d(width, channels, 1)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Add to every place of the maps (B, C, H, W) the weighted mean of all of them."""
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise must_be("shape of x", f"(B, {self.channels}, H, W)", tuple(x.shape))
        query, key = (x, x) if self.form == "gaussian" else (self.theta(x), self.phi(x))
        y = self._smoothed(_places(query), self._places_seen(key), self._places_seen(self.g(x)))
        return x + self.norm(self.out(y.mT.unflatten(2, x.shape[2:])))

    def _smoothed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Σ_j f(i,j) v_j / C_i of (B, N, d), (B, M, d) and (B, M, C // 2), as (B, N, C // 2)."""
        if self.form == "dot":
            return query @ (key.mT @ value / key.shape[1])
        if self.form == "concatenation":
            of_query, of_key = self.w.weight[0].chunk(2)
            pairs = F.relu((query @ of_query)[:, :, None] + (key @ of_key)[:, None, :])
            return pairs @ value / key.shape[1]
        return kernel_attention(query[:, None], key[:, None], value[:, None], content=1.0)[:, 0]

    def _places_seen(self, maps: Tensor) -> Tensor:
        return _places(F.max_pool2d(maps, 2, ceil_mode=True) if self.subsample else maps)


def _places(maps: Tensor) -> Tensor:
    """(B, C, H, W) as (B, H · W, C)."""
    return maps.flatten(2).mT


def insert_non_local(
    model: Any, stages: Sequence[int] = (2, 3), form: str = "embedded", subsample: bool = False
) -> Any:
    """Put a non-local block behind stages of a timm network, in place; its outputs stay the same at first.

    Args:
        model: a timm model with `layer1` to `layer4`, such as a ResNet, or with `stages`, on maps
            (B, C, H, W). A stage that is no `Sequential` gets another name in the state: load weights first.
        stages: numbers of the stages, from 1. Default (2, 3), res3 and res4 of Wang et al. (2018).
        form, subsample: as for `NonLocalBlock`.

    Returns:
        The model itself.

    Raises:
        InputError: a model without such stages; it is then left as it was.

    >>> import timm
    >>> from nadaraya.models.vit.non_local import insert_non_local
    >>> model = insert_non_local(timm.create_model("resnet18"), stages=[3])
    >>> type(model.layer3[-1]).__name__
    'NonLocalBlock'
    """
    there = {}
    for entry in getattr(model, "feature_info", ()):
        if place := re.fullmatch(r"layer(\d)|stages\.(\d)", entry["module"]):
            there[int(place[1] or int(place[2]) + 1)] = entry
    numbers = list(stages) if isinstance(stages, Sequence) else []
    if not numbers or any(number not in there for number in numbers):
        accepted = f"a list of stages that {type(model).__name__} has, {sorted(there) or 'none'}"
        raise must_be("stages", accepted, stages)
    blocks = [NonLocalBlock(there[number]["num_chs"], form, subsample) for number in numbers]
    for number, block in zip(numbers, blocks, strict=True):
        name = there[number]["module"]
        stage = model.get_submodule(name)
        block.to(next(stage.parameters())).train(model.training)
        if isinstance(stage, nn.Sequential):
            stage.append(block)
        else:
            model.set_submodule(name, nn.Sequential(stage, block))
    return model

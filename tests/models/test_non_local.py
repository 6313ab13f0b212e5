"""Non-local blocks: each form against its formula, and an exact identity in timm's networks until trained."""

from itertools import product

import pytest
import timm
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, relu

from nadaraya.errors import InputError
from nadaraya.models.vit.non_local import FORMS, NonLocalBlock, insert_non_local


def by_formula(block: NonLocalBlock, x: Tensor) -> Tensor:
    """The block place by place, as the paper writes it, in evaluation."""

    def conv(layer: torch.nn.Conv2d, features: Tensor) -> Tensor:
        assert layer.bias is not None
        return layer.weight[:, :, 0, 0] @ features + layer.bias

    def seen(maps: Tensor) -> Tensor:
        return max_pool2d(maps, 2, ceil_mode=True) if block.subsample else maps

    out = torch.empty_like(x)
    places = list(product(range(x.shape[2]), range(x.shape[3])))
    for b, (i, j) in product(range(len(x)), places):
        query = x[b, :, i, j]
        keys, values = x, block.g(x)
        if block.form != "gaussian":
            query, keys = conv(block.theta, query), block.phi(x)
        keys, values = seen(keys)[b].flatten(1).T, seen(values)[b].flatten(1).T
        if block.form in ("embedded", "gaussian"):
            f = torch.stack([torch.exp(query @ key) for key in keys])
            f = f / f.sum()
        elif block.form == "dot":
            f = torch.stack([query @ key for key in keys]) / len(keys)
        else:
            f = torch.stack([relu(block.w(torch.cat([query, key]))[0]) for key in keys]) / len(keys)
        y = sum(weight * value for weight, value in zip(f, values, strict=True))
        norm = block.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scaled = (conv(block.out, y) - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        out[b, :, i, j] = x[b, :, i, j] + norm.weight * scaled + norm.bias
    return out


@pytest.mark.parametrize("subsample", [False, True])
@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_the_formula(form: str, subsample: bool) -> None:
    torch.manual_seed(0)
    block = NonLocalBlock(6, form, subsample).double().eval()
    for parameter in block.parameters():
        parameter.normal_()
    x = torch.randn(2, 6, 5, 4, dtype=torch.float64) / 2
    torch.testing.assert_close(block(x), by_formula(block, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("subsample", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_all_parameters_learn(form: str, subsample: bool) -> None:
    torch.manual_seed(0)
    block = NonLocalBlock(6, form, subsample)
    torch.nn.init.ones_(block.norm.weight)
    block(torch.randn(2, 6, 5, 4)).square().sum().backward()
    # The norm takes out whatever shifts all places alike, the bias before it too.
    unlearnt = {
        name for name, p in block.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-6
    }
    assert unlearnt <= {"out.bias", "g.bias", "phi.bias"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "stages"), [("resnet18", (2, 3)), ("resnet18", (4,)), ("convnext_atto", (1, 4))]
)
def test_timm_networks_are_unchanged_until_trained(name: str, stages: tuple[int, ...], form: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=4).eval()
    keys = set(model.state_dict())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before = model(images)
    assert insert_non_local(model, stages, form, subsample=True) is model
    blocks = [module for module in model.modules() if isinstance(module, NonLocalBlock)]
    assert len(blocks) == len(stages)
    assert not any(block.training for block in blocks)
    if name == "resnet18":
        assert keys < set(model.state_dict())  # weights of the network still fit
    gains = [block.norm.weight for block in blocks]
    logits = model(images)
    assert torch.equal(logits, before)
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 3])).backward()
    assert all(gain.grad is not None and gain.grad.abs().max() > 0 for gain in gains)
    torch.optim.SGD(gains, lr=0.1).step()
    with torch.no_grad():
        assert not torch.equal(model(images), before)


def test_training_mode_is_unchanged_too() -> None:
    torch.manual_seed(0)
    model = timm.create_model("resnet18", pretrained=False, num_classes=4)
    images = torch.randn(4, 3, 64, 64)
    before = model(images)
    assert torch.equal(insert_non_local(model)(images), before)


def test_errors_are_one_line() -> None:
    def raises(match: str) -> object:
        return pytest.raises(InputError, match=rf"^[^\n]*{match}[^\n]*$")

    with raises("form must be one of .*got 'gausian': did you mean 'gaussian'"):
        NonLocalBlock(8, "gausian")
    with raises("channels must be a whole number of at least 2, got 1"):
        NonLocalBlock(1)
    with raises(r"shape of x must be \(B, 8, H, W\), got \(1, 6, 2, 2\)"):
        NonLocalBlock(8)(torch.zeros(1, 6, 2, 2))
    model = timm.create_model("resnet18", num_classes=4)
    keys = set(model.state_dict())
    with raises(r"stages must be a list of stages that ResNet has, \[1, 2, 3, 4\], got \(2, 5\)"):
        insert_non_local(model, stages=(2, 5))
    with raises("got 3"):
        insert_non_local(model, stages=3)  # type: ignore[arg-type]
    with raises("stages that Linear has, none"):
        insert_non_local(torch.nn.Linear(2, 2))
    assert set(model.state_dict()) == keys

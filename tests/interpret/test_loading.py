"""Models with their preprocessing and names see and say what the libraries by themselves give."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision.transforms.functional import normalize, pil_to_tensor

from nadaraya.errors import InputError
from nadaraya.interpret import ImageModel

SMALL = {"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 16, "num_heads": 2}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture of the size that the models take, so that resizing leaves its pixels alone."""
    path = tmp_path_factory.mktemp("images") / "picture.png"
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def model(**options: object) -> ImageModel:
    mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    cfg = {"mean": mean, "std": std, "crop_pct": 1.0}
    given = {**SMALL, "num_classes": 4, "pretrained_cfg_overlay": cfg, **options}
    return ImageModel.from_timm(timm.create_model("vit_tiny_patch16_224", **given), "vit")


def test_an_image_is_normalised_and_back(image: Path) -> None:
    vit = model()
    pixels = vit.preprocess(image)
    raw = pil_to_tensor(Image.open(image)) / 255
    torch.testing.assert_close(pixels, normalize(raw, vit.mean, vit.std))
    np.testing.assert_allclose(vit.picture(pixels), raw.permute(1, 2, 0).numpy(), atol=1e-6)
    assert vit.model(pixels[None]).shape == (1, 4)
    assert vit.mean == (0.4, 0.5, 0.6)


def test_models_of_one_channel_see_grey(image: Path) -> None:
    grey = model(in_chans=1, pretrained_cfg_overlay={"mean": (0.5,), "std": (0.5,), "crop_pct": 1.0})
    pixels = grey.preprocess(image)
    raw = np.asarray(Image.open(image).convert("L")) / 255
    np.testing.assert_allclose(grey.picture(pixels), np.repeat(raw[..., None], 3, axis=2), atol=1e-6)
    with pytest.raises(InputError, match="1 or 3 channels, got"):
        model(in_chans=4)


def test_the_likeliest_classes_come_first() -> None:
    logits = torch.tensor([1.0, 3.0, -2.0, 2.0])
    (first, most), (second, _) = model().top_k(logits, k=2)
    assert (first, second) == ("class 1", "class 3")
    assert most == pytest.approx(logits.softmax(0)[1].item())
    assert len(model().top_k(logits)) == 4  # no more than there are
    assert model(num_classes=1000).class_name(281) == "tabby, tabby cat"


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.png").write_text("Dear reader")
    with pytest.raises(InputError, match="not a known image"):
        model().preprocess(tmp_path / "letter.png")

"""Every mode of image becomes 8-bit RGB or grey in the way the docstring says."""

import io

import numpy as np
import pytest
from PIL import ExifTags, Image
from PIL.Image import Transpose

from nadaraya.data.images.sources import is_grey, to_channels

GREY = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
COLOUR = Image.merge("RGB", (GREY, GREY.rotate(90), GREY.rotate(180)))


def saved(image: Image.Image, kind: str, **options: object) -> Image.Image:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return Image.open(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I", "I;16"])
def test_every_mode_gives_the_wanted_one(mode: str, channels: int) -> None:
    image = (
        GREY.convert(mode)
        if mode.startswith("I")
        else COLOUR.convert("L" if mode == "LA" else "RGB").convert(mode)
    )
    picture = to_channels(image, channels)
    assert picture.mode == {1: "L", 3: "RGB"}[channels]
    assert picture.size == image.size


@pytest.mark.parametrize("mode", ["RGBA", "CMYK", "YCbCr"])
def test_opaque_colours_are_kept(mode: str) -> None:
    kept = np.asarray(to_channels(COLOUR.convert(mode), 3), dtype=int)
    assert np.abs(kept - np.asarray(COLOUR, dtype=int)).max() <= 3  # YCbCr rounds twice


def test_transparent_pixels_are_white() -> None:
    image = COLOUR.convert("RGBA")
    image.putalpha(Image.fromarray(np.where(np.asarray(GREY) < 128, 0, 255).astype(np.uint8)))
    for opened in (image, saved(image, "png"), saved(image, "webp", lossless=True)):
        pixels = np.asarray(to_channels(opened, 3))
        assert (pixels[:8] == 255).all()
        assert (pixels[8:] == np.asarray(COLOUR)[8:]).all()


def test_transparent_palette_entry_is_white() -> None:
    image = GREY.convert("P")
    opened = saved(image, "png", transparency=7)
    pixels = np.asarray(to_channels(opened, 1)).ravel()
    assert pixels[7] == 255
    assert (np.delete(pixels, 7) == np.delete(np.arange(256), 7)).all()


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_sixteen_bit_grey_keeps_the_high_byte(kind: str) -> None:
    high = np.arange(256, dtype=np.uint16)
    values = (256 * high + high[::-1]).reshape(16, 16)
    opened = saved(Image.fromarray(values), kind)
    assert is_grey(opened)
    np.testing.assert_array_equal(np.asarray(to_channels(opened, 1)), np.asarray(GREY))


def test_palette_colours_are_looked_up() -> None:
    image = COLOUR.quantize(16)
    np.testing.assert_array_equal(
        np.asarray(to_channels(saved(image, "gif"), 3)), np.asarray(image.convert("RGB"))
    )


@pytest.mark.parametrize("pixels", [np.ones((2, 2), np.float32), np.full((2, 2), 70_000, np.int32)])
def test_pixels_without_a_range_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="pixels"):
        to_channels(Image.fromarray(pixels), 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpeg", "png", "tiff", "webp"])
def test_orientation_tags_of_cameras_are_followed(kind: str, orientation: int) -> None:
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = orientation
    image = COLOUR.resize((32, 48)).crop((0, 0, 24, 48))
    opened = saved(image, kind, exif=tags, **({"lossless": True} if kind == "webp" else {}))
    plain = to_channels(saved(image, kind, **({"lossless": True} if kind == "webp" else {})), 3)
    turns = [None, Transpose.FLIP_LEFT_RIGHT, Transpose.ROTATE_180, Transpose.FLIP_TOP_BOTTOM]
    turns += [Transpose.TRANSPOSE, Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90]
    turn = turns[orientation - 1]
    expected = plain if turn is None else plain.transpose(turn)
    np.testing.assert_array_equal(np.asarray(to_channels(opened, 3)), np.asarray(expected))


def test_damaged_tags_change_nothing() -> None:
    opened = saved(COLOUR, "jpeg", exif=b"Exif\0\0no tags at all")
    np.testing.assert_array_equal(to_channels(opened, 3), to_channels(saved(COLOUR, "jpeg"), 3))


def test_integers_to_255_are_8_bits_and_larger_ones_16() -> None:
    values = np.arange(256, dtype=np.int32).reshape(16, 16)
    np.testing.assert_array_equal(to_channels(Image.fromarray(values), 1), values)
    np.testing.assert_array_equal(to_channels(Image.fromarray(values * 257), 1), values)
    dim = Image.fromarray(values.astype(np.uint16))
    assert np.asarray(to_channels(dim, 1)).max() == 0


def test_transparent_value_of_16_bit_grey_is_white_and_the_others_keep_their_high_byte() -> None:
    values = np.array([[0, 1000, 30_000, 65_535]], np.uint16)
    opened = saved(Image.fromarray(values), "png", transparency=30_000)
    np.testing.assert_array_equal(to_channels(opened, 1), [[0, 3, 255, 255]])


@pytest.mark.parametrize("channels", [1, 3])
def test_modes_with_one_way_out_take_it(channels: int) -> None:
    white = Image.new("LAB", (4, 4), (255, 128, 128))
    assert np.asarray(to_channels(white, channels)).min() >= 254
    premultiplied = Image.merge("LA", (GREY, Image.new("L", GREY.size, 255))).convert("La")
    np.testing.assert_array_equal(
        to_channels(premultiplied, channels), GREY.convert({1: "L", 3: "RGB"}[channels])
    )


def test_image_without_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="no pixels"):
        to_channels(Image.new("RGB", (0, 5)), 3)

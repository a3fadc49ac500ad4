"""Files that lie, end early, or are no images."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from vlprune.media.image import ImageError, image_from_pixels, open_image

NOISE = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
FORMATS = ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]


def encoded(kind, image=None, **options):
    buffer = io.BytesIO()
    (image or Image.fromarray(NOISE)).save(buffer, kind, **options)
    return buffer.getvalue()


def png_that_claims(width, height):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 4096)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.fixture
def written(tmp_path):
    def write(data, name="x.png"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("kind", FORMATS)
def test_reads(written, kind):
    image = open_image(written(encoded(kind)))
    assert (image.mode, image.size) == ("RGB", (80, 60))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_truncated(written, kind, share):
    data = encoded(kind)
    with pytest.raises(ImageError, match="truncated or damaged"):
        open_image(written(data[: int(len(data) * share)]))


@pytest.mark.parametrize("size", [(100_000, 100_000), (60_000, 60_000), (10_000, 9_000)])
def test_bomb(written, size):
    """Far over Pillow's limit, over it, and where Pillow only warns: refused before decoding, with no warning."""
    ppm = f"P6 {size[0]} {size[1]} 255\n".encode() + b"\0" * 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (png_that_claims(*size), ppm):
            with pytest.raises(ImageError, match="too large"):
                open_image(written(data))


def test_bomb_with_pillows_own_guard_turned_off(written, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(ImageError, match="100,000 x 100,000 pixels"):
        open_image(written(png_that_claims(100_000, 100_000)))


def test_a_strip_that_resizing_would_blow_up(written):
    with pytest.raises(ImageError, match="too long: 1 x 5,000 pixels"):
        open_image(written(encoded("PNG", Image.new("RGB", (1, 5000)))))
    assert open_image(written(encoded("PNG", Image.new("RGB", (10, 2000))))).size == (10, 2000)


def test_limit(written):
    path = written(encoded("PNG"))
    assert open_image(path, max_pixels=4800).size == (80, 60)
    with pytest.raises(ImageError, match="4,799"):
        open_image(path, max_pixels=4799)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 1000, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_not_an_image(written, data):
    """PostScript too: Pillow would hand it to another program."""
    with pytest.raises(ImageError, match="is not an image"):
        open_image(written(data))


def test_no_file(tmp_path):
    with pytest.raises(ImageError, match="there is no file"):
        open_image(tmp_path / "none.png")
    with pytest.raises(ImageError, match="is not a file"):
        open_image(tmp_path)


def test_upright(written):
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter
    assert open_image(written(encoded("JPEG", exif=exif))).size == (60, 80)


def test_modes(written):
    grey = np.linspace(0, 65535, 256 * 4).reshape(4, 256).astype(np.uint16)
    image = np.asarray(open_image(written(encoded("PNG", Image.fromarray(grey)))))
    assert image.shape == (4, 256, 3)
    assert abs(image[..., 0].astype(int) - np.round(grey / 257).astype(int)).max() <= 1
    for mode in ("L", "P", "RGBA", "1", "LA"):
        assert open_image(written(encoded("PNG", Image.new(mode, (6, 5))))).mode == "RGB"
    assert open_image(written(encoded("JPEG", Image.new("CMYK", (6, 5))))).mode == "RGB"


def test_an_image_from_its_pixels():
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(size={"shortest_edge": 60}, crop_size={"height": 60, "width": 60})
    pixels = processor(Image.fromarray(NOISE), return_tensors="pt")["pixel_values"][0]
    seen = np.asarray(image_from_pixels(pixels, processor)).astype(int)
    assert abs(seen - NOISE[:, 10:70]).max() <= 1  # the middle of the image, which is what the model got
    with pytest.raises(ValueError, match="one image"):
        image_from_pixels(torch.zeros(1, 3, 4, 4), processor)


@pytest.mark.parametrize("ending", ["gif", "webp", "png", "tiff"])
def test_of_an_animated_image_the_first_frame_is_used(tmp_path, ending):
    red, blue = (Image.new("RGB", (20, 20), color) for color in ("red", "blue"))
    path = tmp_path / f"moving.{ending}"
    red.save(path, save_all=True, append_images=[blue], **({"lossless": True} if ending == "webp" else {}))
    with pytest.warns(UserWarning, match=r"moving.* is animated; the first of its 2 frames is used\.$"):
        assert open_image(path).getpixel((3, 3))[0] > 200


def test_a_later_frame_that_is_damaged(tmp_path):
    """Pillow reads the beginnings of all frames to count them; found by benchmarks/fuzz.py."""
    path = tmp_path / "two.tiff"
    Image.new("RGB", (20, 20)).save(path, save_all=True, append_images=[Image.new("RGB", (20, 20))])
    data = bytearray(path.read_bytes())
    (first,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, first)
    (second,) = struct.unpack_from("<I", data, first + 2 + 12 * count)
    struct.pack_into("<H", data, second + 2, 0xFFFE)  # in place of the tag of its width
    path.write_bytes(data)
    with pytest.raises(ImageError, match=r"'.*two\.tiff' is a truncated or damaged image\.$"):
        open_image(path)

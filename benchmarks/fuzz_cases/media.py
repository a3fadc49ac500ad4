"""Images and videos, whole or not: pictures, or one sentence."""

import io
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np

from fuzz_cases.expectations import expect, one_sentence


def drawn_image(draw: random.Random) -> tuple[bytes, str]:
    """The bytes of an image file, whole or not."""
    from PIL import Image

    noise = np.random.default_rng(draw.getrandbits(32))
    sizes = [(1, 1), (1, 300), (3, 5), (17, 16), (64, 48), (400, 2), (300, 1)]
    width, height = draw.choice(sizes)
    image = Image.fromarray(noise.integers(0, 256, (height, width, 3), dtype=np.uint8))
    form = draw.choice(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
    mode = draw.choice(["RGB", "L", "CMYK", "1", "P", "RGBA", "I;16", "LA", "F"])
    if mode == "I;16":
        image = Image.fromarray(noise.integers(0, 65536, (height, width), dtype=np.uint16))
    else:
        image = image.convert(mode)
    file, more = io.BytesIO(), {}
    if form in ("GIF", "WEBP", "TIFF", "PNG") and draw.random() < 0.3:
        more = {"save_all": True, "append_images": [image] * draw.randint(1, 3)}
    if form in ("JPEG", "WEBP", "PNG") and draw.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = draw.choice([0, 1, 3, 6, 8, 9, 65535])
        more["exif"] = exif
    try:
        image.save(file, form, **more)
    except (OSError, ValueError, KeyError, SystemError):
        file = io.BytesIO()
        image.convert("RGB").save(file, form)
    data, harm = bytearray(file.getvalue()), draw.choice(["none", "cut", "flip", "bomb", "type", "noise", "doubled"])
    if harm == "cut":
        del data[draw.randint(0, len(data)) :]
    elif harm == "flip":
        for _ in range(draw.choice([1, 3, 30])):
            data[draw.randrange(min(len(data), draw.choice([64, 10**9])))] ^= 1 << draw.randrange(8)
    elif harm == "bomb" and form in ("PNG", "BMP", "GIF"):
        at = {"PNG": 16, "BMP": 18, "GIF": 6}[form]
        data[at : at + 4] = bytes([draw.randrange(256) for _ in range(4)])
    elif harm == "type":
        data[: draw.randint(1, 12)] = draw.choice([b"%!PS-Adobe", b"<svg ", b"\x1f\x8b", b"PK\x03\x04", b"GIF89a", b""])
    elif harm == "noise":
        data = bytearray(noise.bytes(draw.randint(0, 400)))
    elif harm == "doubled":
        data = data + data
    return bytes(data), f"{form}, {harm}"


def image_case(draw: random.Random) -> str:
    from vlprune.media.image import ImageError, open_image

    data, kind = drawn_image(draw)
    path = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}{draw.choice(['.png', '.jpg', '.gif', '', '.mp4.png'])}"
    path.write_bytes(data)
    begun = time.time()
    try:
        image = open_image(path)
    except ImageError as error:
        one_sentence(error)
        kind += ": refused"
    else:
        expect(image.mode == "RGB" and min(image.size) > 0, f"{image.mode} {image.size}")
    finally:
        path.unlink()
    expect(time.time() - begun < 20, f"it took {time.time() - begun:.0f} s")
    return kind


def video_case(draw: random.Random) -> str:
    import av

    from vlprune.media.image import ImageError
    from vlprune.media.video import read_clip

    noise = np.random.default_rng(draw.getrandbits(32))
    form, codec = draw.choice([("mp4", "mpeg4"), ("matroska", "mpeg4"), ("avi", "mjpeg"), ("mp4", "h264")])
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=draw.choice([1, 24, 60]))
        stream.width, stream.height = draw.choice([(16, 16), (64, 48), (128, 16)])
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for _ in range(draw.randint(1, 12)):
            pixels = noise.integers(0, 256, (stream.height, stream.width, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    data, harm = bytearray(file.getvalue()), draw.choice(["none", "cut", "flip", "noise"])
    if harm == "cut":
        del data[draw.randint(0, len(data)) :]
    elif harm == "flip":
        for _ in range(draw.choice([1, 5, 50])):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif harm == "noise":
        data[draw.randrange(len(data)) :] = noise.bytes(200)
    path = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}.{draw.choice(['mp4', 'mkv', 'avi'])}"
    path.write_bytes(data)
    try:
        clip = read_clip(path, draw.choice([1, 4, 16]))
        expect(clip.frames and all(frame.shape[2] == 3 for frame in clip.frames), "no frames")
        return f"{form}, {harm}"
    except ImageError as error:
        one_sentence(error)
        return f"{form}, {harm}: refused"
    finally:
        path.unlink()

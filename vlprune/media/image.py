"""Images from files that are not trusted, and images as a model saw them."""

from __future__ import annotations

import re
import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

#: Raster formats only: Pillow hands some others (EPS, for one) to programs outside.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
#: As many as fill a quarter of a gigabyte in RGB, which is where Pillow starts to warn.
MAX_PIXELS = 89_478_485
#: Image processors bring the short side to a fixed size, so a long strip would grow without bound.
MAX_ASPECT = 200
#: What Pillow's decoders raise on damaged files and on those that end early.
DECODE_ERRORS = (
    OSError,
    SyntaxError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    struct.error,
    zlib.error,
)


class ImageError(ValueError):
    """The file is no image that can be used; the message says why in one sentence."""


def check_file(path: str | Path) -> Path:
    """The path of a file; raises `ImageError` where there is none."""
    address = re.match(r"(https?|ftp|s3|gs|file|data):", str(path))
    path = Path(path)
    if not path.exists():
        if address is not None:
            typed = re.sub(r":/+", "://", str(path), count=1)  # a Path has lost one of its slashes
            raise ImageError(f"{typed!r} is an address, and only files are read: download it first.")
        raise ImageError(f"there is no file {str(path)!r}.")
    if not path.is_file():
        raise ImageError(f"{str(path)!r} is not a file.")
    return path


def to_image(image: Any) -> Any:
    """An image that `open_image` reads from its path, or the image itself; `TypeError` for what is neither."""
    if isinstance(image, (str, Path)):
        return open_image(image)
    if not hasattr(image, "convert") and not hasattr(image, "shape"):  # of PIL's, and of arrays and tensors
        raise TypeError(f"image={image!r}: pass an image, or the path of one.")
    return image


def open_image(path: str | Path, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open a file as an RGB image, upright, with all its pixels decoded.

    The size that the file claims is checked before anything is decoded. Raises `ImageError` for a file that is missing,
    no image, truncated or damaged, or larger than `max_pixels`.

    >>> open_image("no-such.png")
    Traceback (most recent call last):
    ...
    vlprune.media.image.ImageError: there is no file 'no-such.png'.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    path = check_file(path)
    name = repr(str(path))
    Image.init()
    formats = [kind for kind in FORMATS if kind in Image.OPEN]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(path, formats=formats)
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name} is too large: at most {max_pixels:,} pixels are opened.") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{name} is not an image (PNG, JPEG, WebP, GIF, BMP, TIFF or PPM).") from error
    except PermissionError as error:
        raise ImageError(f"{name} may not be read.") from error
    except DECODE_ERRORS as error:
        raise ImageError(f"{name} is a truncated or damaged image.") from error
    with opened:
        width, height = opened.size
        if width * height > max_pixels:
            raise ImageError(
                f"{name} is too large: {width:,} x {height:,} pixels, of which at most {max_pixels:,} are opened."
            )
        if max(width, height) > MAX_ASPECT * min(width, height):
            raise ImageError(
                f"{name} is too long: {width:,} x {height:,} pixels; one side may be {MAX_ASPECT} times the other."
            )
        try:  # to count frames, Pillow reads the beginnings of all of them
            frames = getattr(opened, "n_frames", 1) if opened.format != "MPO" else 1  # a photograph and its previews
            if frames > 1:
                warnings.warn(f"vlprune: {name} is animated; the first of its {frames} frames is used.", stacklevel=2)
            opened.load()
            return _to_rgb(ImageOps.exif_transpose(opened))
        except Image.DecompressionBombError as error:
            raise ImageError(f"{name} is too large: at most {max_pixels:,} pixels are opened.") from error
        except DECODE_ERRORS as error:
            raise ImageError(f"{name} is a truncated or damaged image.") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    """The image with 8 bits of red, green and blue."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        import numpy as np
        from PIL import Image

        levels = np.asarray(image).astype(np.float32)
        image = Image.fromarray((levels.clip(0, 65535) / 257).round().astype(np.uint8))
    return image.convert("RGB")


def image_from_pixels(pixels: Tensor, processor: Any) -> Image.Image:
    """The image that the model saw: `pixels` (3, H, W) of the processor, resized and cropped, with its scaling undone.

    >>> import torch
    >>> class Processor:
    ...     image_mean, image_std = [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]
    >>> image_from_pixels(torch.zeros(3, 2, 4), Processor()).size
    (4, 2)
    """
    import torch
    from PIL import Image

    if pixels.ndim != 3 or pixels.shape[0] != 3:
        raise ValueError(f"pixels has shape {tuple(pixels.shape)}: pass one image, (3, height, width).")
    processor = getattr(processor, "image_processor", processor)
    mean, std = (torch.tensor(getattr(processor, name)).view(3, 1, 1) for name in ("image_mean", "image_std"))
    levels = (pixels.detach().float().cpu() * std + mean).clamp(0, 1) * 255
    return Image.fromarray(levels.round().byte().permute(1, 2, 0).numpy())

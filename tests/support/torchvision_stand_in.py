"""As much of torchvision as transformers' image and video processors call, in plain torch.

torchvision is no dependency of ours, and its wheels do not go with a CPU torch, but transformers prepares videos
only where it is. With this in its place, the real processors run; what they resize differs in details. Import it
before transformers, in a process of its own: transformers looks for torchvision once.
"""

import enum
import importlib.machinery
import sys
import types

import torch
import torch.nn.functional as F


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def resize(image, size, interpolation=InterpolationMode.BILINEAR, antialias=True):
    mode = "bicubic" if interpolation in (InterpolationMode.BICUBIC, InterpolationMode.LANCZOS) else "bilinear"
    flat = image.reshape(-1, *image.shape[-3:]).float()
    resized = F.interpolate(flat, tuple(size), mode=mode, antialias=antialias)
    if image.dtype == torch.uint8:
        resized = resized.round().clamp(0, 255)
    return resized.to(image.dtype).reshape(*image.shape[:-2], *size)


def normalize(image, mean, std, inplace=False):
    mean, std = (torch.as_tensor(values, dtype=image.dtype).view(-1, 1, 1) for values in (mean, std))
    return (image - mean) / std


def pad(image, padding, fill=0, padding_mode="constant"):
    left, top, right, bottom = padding
    return F.pad(image, (left, right, top, bottom), value=fill or 0)


def crop(image, top, left, height, width):
    return image[..., top : top + height, left : left + width]


def grayscale_to_rgb(image):
    return image if image.shape[-3] == 3 else image.expand(*image.shape[:-3], 3, *image.shape[-2:])


def pil_to_tensor(image):
    import numpy as np

    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _module(name, **content):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__dict__.update(content, __path__=[])
    sys.modules[name] = module
    return module


functions = {
    function.__name__: function
    for function in (InterpolationMode, resize, normalize, pad, crop, grayscale_to_rgb, pil_to_tensor)
}
_functional = _module("torchvision.transforms.functional", **functions)
_functional_v2 = _module("torchvision.transforms.v2.functional", **functions)
_v2 = _module("torchvision.transforms.v2", functional=_functional_v2)
_transforms = _module("torchvision.transforms", functional=_functional, v2=_v2, InterpolationMode=InterpolationMode)
_io = _module("torchvision.io", ImageReadMode=None, decode_image=None)  # 5.17 imports them and needs neither here
_module("torchvision", transforms=_transforms, io=_io, __version__="0.28.0")

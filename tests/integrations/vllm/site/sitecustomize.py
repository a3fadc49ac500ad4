"""Lets every process import torchvision beside a CPU build of torch.

The registry's torchvision is a CUDA build, whose import asks for two operators that its library would have declared.
Declaring them is enough: nobody calls them here. On the path of the tests' processes only.
"""

import sys
from importlib.abc import MetaPathFinder

OPERATORS = ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",)
_LIBRARIES = []  # what is declared goes when the library object does


class _DeclareFirst(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname == "torchvision" and not _LIBRARIES:
            import torch

            library = torch.library.Library("torchvision", "DEF")
            _LIBRARIES.append(library)
            for operator in OPERATORS:
                library.define(operator)
                library.define("q" + operator)
        return None


sys.meta_path.insert(0, _DeclareFirst())

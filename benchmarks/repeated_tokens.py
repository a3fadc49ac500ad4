"""How many tokens of images repeat, which Qwen-VL's tower need not encode twice with `CheaperTower(repeats=True)`.

`python benchmarks/repeated_tokens.py IMAGE ...`: the images as Qwen2.5-VL's processor makes patches of them, in sizes
of their own, and how many of their tokens have pixels that no token before them has. No model is run.
"""

import argparse
from pathlib import Path

from transformers import Qwen2VLImageProcessor

from vlprune.media.image import open_image
from vlprune.vision.repeats import first_equal


def count_tokens(path, processor):
    """Rows and columns of an image's tokens, and how many of them are distinct."""
    made = processor(images=[open_image(path)], return_tensors="pt")
    merge = processor.merge_size
    rows, columns = (int(side) // merge for side in made["image_grid_thw"][0, 1:])
    tokens = made["pixel_values"].reshape(rows * columns, -1)
    return rows, columns, len(first_equal(tokens).unique())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    args = parser.parse_args()
    processor = Qwen2VLImageProcessor(patch_size=14, temporal_patch_size=2, merge_size=2)
    print("| image | tokens | distinct | encoded, % |\n| :--- | ---: | ---: | ---: |")
    for path in args.images:
        rows, columns, distinct = count_tokens(path, processor)
        print(f"| {path.name} | {rows} x {columns} | {distinct:,} | {100 * distinct / (rows * columns):.1f} |")


if __name__ == "__main__":
    main()

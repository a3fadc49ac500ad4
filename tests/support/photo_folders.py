"""Folders of drawn photographs with labels, and tiny vision towers beside an image processor's settings."""

import json

import numpy as np
from PIL import Image
from transformers import CLIPConfig, CLIPModel, Dinov2WithRegistersConfig, Dinov2WithRegistersModel, ViTConfig, ViTModel

from tests.support.tiny_llava import loud
from vlprune.pocket import scenes
from vlprune.pocket.render import images
from vlprune.pocket.world import SIZE

PATCH, PIXELS = 8, 48
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": PIXELS, "patch_size": PATCH}
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
NAMES = ["circle", "square", "triangle", "diamond", "star", "cross", "heart", "bar"]


def write_yolo_folder(folder, count=3):
    """Drawn scenes as PNG files, their things as boxes in YOLO's format, and the classes' names."""
    (folder / "images").mkdir(parents=True)
    (folder / "labels").mkdir()
    drawn = scenes("validation", count)
    for number, (scene, image) in enumerate(zip(drawn, images(drawn))):
        image.save(folder / "images" / f"{number}.png")
        lines = [
            f"{NAMES.index(t.shape)} {t.x / SIZE} {t.y / SIZE} {2 * t.radius / SIZE} {2 * t.radius / SIZE}"
            for t in scene.things
        ]
        (folder / "labels" / f"{number}.txt").write_text("\n".join(lines) + "\n")
    (folder / "data.yaml").write_text("names:\n" + "".join(f"  {i}: {name}\n" for i, name in enumerate(NAMES)))
    return folder


def write_panoptic_folder(folder):
    """One photograph, 8 x 4 pixels: a cat on the left quarter, a crowd, and sky on the right half."""
    (folder / "panoptic").mkdir(parents=True)
    Image.new("RGB", (8, 4)).save(folder / "one.jpg")
    mask = np.zeros((4, 8, 3), np.uint8)
    mask[:, :2] = (7, 1, 0)  # 7 + 256
    mask[:, 2] = (9, 0, 0)
    mask[:, 4:] = (0, 0, 1)  # 65536
    Image.fromarray(mask).save(folder / "panoptic" / "one.png")
    segments = [
        {"id": 263, "category_id": 1, "iscrowd": 0, "bbox": [0, 0, 2, 4]},
        {"id": 9, "category_id": 1, "iscrowd": 1, "bbox": [2, 0, 1, 4]},
        {"id": 65536, "category_id": 2, "iscrowd": 0, "bbox": [4, 0, 4, 4]},
    ]
    found = {
        "images": [{"id": 5, "file_name": "one.jpg", "width": 8, "height": 4}],
        "annotations": [{"image_id": 5, "file_name": "one.png", "segments_info": segments}],
        "categories": [{"id": 1, "name": "cat", "isthing": 1}, {"id": 2, "name": "sky", "isthing": 0}],
    }
    (folder / "panoptic.json").write_text(json.dumps(found))
    return folder


def tiny_tower(kind):
    """A tower of that kind with random weights, or a CLIP that holds one."""
    if kind == "vit":
        return loud(ViTModel(ViTConfig(**SIZES, intermediate_size=48), add_pooling_layer=False), 0)
    if kind == "registers":
        return loud(Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2)), 0)
    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**SIZES, "intermediate_size": 48}
    return loud(CLIPModel(CLIPConfig(text_config={**text, "vocab_size": 20}, vision_config=vision)), 0)


def save_tower(kind, folder):
    """The folder of such a tower, as `--tower` takes it."""
    tiny_tower(kind).save_pretrained(folder)
    settings = {"image_processor_type": "CLIPImageProcessor", "image_mean": MEAN, "image_std": STD}
    settings |= {"size": {"shortest_edge": PIXELS}, "crop_size": {"height": PIXELS, "width": PIXELS}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder

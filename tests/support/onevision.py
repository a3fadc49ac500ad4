"""`python -m tests.cli.onevision FOLDER COMMAND ...`: the program beside a tiny LLaVA-OneVision."""

import sys

if __name__ == "__main__":
    from . import stand_in  # noqa: F401

import transformers as t

from ..families.case import PATCH
from ..families.llava import LlavaOnevision
from .families import TEMPLATE, tokenizer


class Onevision(LlavaOnevision):
    side = 10


def save(folder):
    case = Onevision()
    size = {"height": case.side * PATCH, "width": case.side * PATCH}
    processor = t.LlavaOnevisionProcessor(
        image_processor=t.LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=[list(size.values())]),
        video_processor=t.LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=case.side**2,
        vision_feature_select_strategy="full",
        tokenizer=tokenizer(),
        chat_template=TEMPLATE.replace("MARK", "{{ '<' + part['type'] + '> ' }}"),
    )
    case.model().save_pretrained(folder)
    processor.save_pretrained(folder)


if __name__ == "__main__":
    from vlprune.cli import main

    save(sys.argv[1])
    main(sys.argv[2:])

"""`python -m tests.support.onevision FOLDER COMMAND ...`: the program beside a tiny LLaVA-OneVision."""

import sys

if __name__ == "__main__":
    from tests.support import torchvision_stand_in as stand_in  # noqa: F401

import transformers as t

from tests.support.families.case import PATCH
from tests.support.families.llava import LlavaOnevision
from tests.support.family_checkpoints import TEMPLATE, tokenizer


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
    model = case.model()
    model.config.image_grid_pinpoints = processor.image_processor.image_grid_pinpoints
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


if __name__ == "__main__":
    from vlprune.cli.app import main

    save(sys.argv[1])
    main(sys.argv[2:])

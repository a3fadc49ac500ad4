"""Tasks for lmms-eval about drawn scenes: data in the official shapes, prompts and scores by lmms-eval's own code."""

import io

from vlprune.pocket import world
from vlprune.pocket.render import images

SCENES = 8
FUNCTIONS = "from lmms_eval.tasks.{name}.utils import *\n"
#: The official prompts' end. Only local_mme has it: the pocket model does not know its words.
HINT = "\\nAnswer the question using a single word or phrase."
YAML = """dataset_path: parquet
dataset_kwargs:
  data_files: {{test: {data}}}
task: {task}
test_split: test
output_type: {output}
doc_to_visual: !function {module}.{prefix}_doc_to_visual
doc_to_text: !function {module}.{prefix}_doc_to_text
doc_to_target: answer
generation_kwargs: {{max_new_tokens: 4, do_sample: false}}
lmms_eval_specific_kwargs:
  default: {{pre_prompt: "", post_prompt: "{hint}"}}
{more}
"""
POPE = """process_results: !function {module}.pope_process_results
metric_list:
  - {{metric: pope_accuracy, aggregation: !function {module}.pope_aggregate_accuracy, higher_is_better: true}}
  - {{metric: pope_f1_score, aggregation: !function {module}.pope_aggregate_f1_score, higher_is_better: true}}"""
GQA = """metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true, ignore_punctuation: true}}"""
TEXTVQA = """process_results: !function {module}.textvqa_process_results
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true, ignore_punctuation: true}}"""
MME = """process_results: !function {module}.mme_process_results
metric_list:
  - {{metric: mme_perception_score, aggregation: !function {module}.mme_aggregate_results, higher_is_better: true}}"""
CHOICES = """doc_to_choice: ["Yes", "No"]
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}"""


def write_tasks(folder, official=False):
    """Write the tasks local_pope, local_gqa, local_textvqa, local_mme and local_choices; returns the folder.

    With `official` names they stand in the place of lmms-eval's own.
    """
    drawn = world.scenes("test", SCENES)
    shown = [_png(image) for image in images(drawn)]
    rows = {
        "pope": _yes_no(drawn, shown, "question_id"),
        "gqa": _open(drawn, shown, "gqa"),
        "textvqa": _open(drawn, shown, "textvqa"),
        "mme": [{**row, "category": "existence"} for row in _yes_no(drawn, shown, "image_source")],
    }
    for name, more in {"pope": POPE, "gqa": GQA, "textvqa": TEXTVQA, "mme": MME}.items():
        task = {"textvqa": "textvqa_val"}.get(name, name) if official else f"local_{name}"
        write_task(folder, task, name, rows[name], more)
    write_task(folder, "local_choices", "pope", rows["pope"], CHOICES, output="multiple_choice")
    return folder


def write_task(folder, task, name, rows, more, output="generate_until"):
    """Write one task: its rows as parquet, the functions of lmms-eval's task `name`, and the description."""
    import datasets

    data, module = folder / f"{task}.parquet", f"{name}_functions"
    table = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
    table.to_parquet(str(data))
    (folder / f"{module}.py").write_text(FUNCTIONS.format(name=name))
    parts = {"data": data, "task": task, "module": module, "prefix": name, "output": output}
    hint = HINT if name == "mme" else ""
    (folder / f"{task}.yaml").write_text(YAML.format(**parts, hint=hint, more=more.format(module=module)))


def _png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def _yes_no(drawn, shown, source):
    """Two questions about each scene, the first with the answer yes, the second no."""
    rows = []
    for scene, image in zip(drawn, shown):
        there = sorted({(thing.color, thing.shape) for thing in scene.things})
        gone = sorted({(color, shape) for color in world.COLORS for shape in world.SHAPES} - set(there))
        for number, (pair, answer) in enumerate([(there[0], "Yes"), (gone[-1], "No")]):
            question = f"is there a {pair[0]} {pair[1]}?"
            key = f"{scene.name}.png" if source == "image_source" else str(2 * len(rows) + number)
            rows.append({"question_id": key, "question": question, "answer": answer, "image": image})
    return rows


def _open(drawn, shown, name):
    """Questions whose answers are words: one answer in GQA, ten in TextVQA."""
    rows = []
    for scene, image in zip(drawn, shown):
        for asked in world.questions(scene, ("color", "shape", "count")):
            row = {"question_id": len(rows), "question": asked.text, "image": image}
            ten = {"answers": [asked.answer] * 7 + ["thing"] * 3, "ocr_tokens": []}
            rows.append(row | ({"answer": asked.answer, "imageId": scene.name} if name == "gqa" else ten))
    return rows


def read_rows(folder, task):
    """The rows of a task, as lmms-eval reads them."""
    import datasets

    return datasets.load_dataset("parquet", data_files={"test": str(folder / f"{task}.parquet")})["test"]

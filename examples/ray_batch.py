"""Ask questions about many images, on many workers: Ray Data over vLLM, pruned.

    python examples/ray_batch.py photos answers --question "What is this?" --model llava-hf/llava-1.5-7b-hf \\
        --keep 64 --workers 8 --gpus-per-worker 1

The images are those of a folder, all with the same question, or the rows of a parquet file with the columns `image`
(a path, or the file's bytes), `question` and, if you like, `id`. Every batch of answers is a file in the output folder
as soon as it is there (JSON lines: id, question, answer). Start the same command again and it goes on with what is
missing; if a worker dies, Ray starts another and hands it the batch that was lost. vlprune has to be installed on every
node; vLLM finds it by itself.
"""

import argparse
import hashlib
import io
import json
import os
from pathlib import Path

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def read_rows(source: Path, question: str | None) -> list[dict]:
    """The rows to annotate: `id`, `image` (path or bytes) and `question`."""
    if source.is_dir():
        if question is None:
            raise SystemExit(f"{source} is a folder: pass --question.")
        files = sorted(file for file in source.rglob("*") if file.suffix.lower() in SUFFIXES)
        return [{"id": str(file.relative_to(source)), "image": str(file), "question": question} for file in files]
    import pyarrow.parquet as parquet

    rows = parquet.read_table(source).to_pylist()
    missing = {"image", "question"} - set(rows[0] if rows else ())
    if missing:
        raise SystemExit(f"{source}: no column {', '.join(sorted(missing))}; it needs image and question.")
    return [
        {"id": str(row.get("id", i)), "image": row["image"], "question": row["question"]} for i, row in enumerate(rows)
    ]


def answered(folder: Path) -> set[str]:
    """The ids that the output folder holds an answer for."""
    return {json.loads(line)["id"] for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()}


class Annotator:
    """One worker: an engine, and the batches it is handed."""

    def __init__(self, model: str, keep: str, method: str, new_tokens: int, folder: str, options: dict) -> None:
        from vllm import LLM, SamplingParams

        from vlprune import get_method
        from vlprune.integrations.vllm import overrides

        budget = float(keep) if "." in keep else int(keep)
        self.llm = LLM(model, hf_overrides=overrides(get_method(method, keep=budget)), **options)
        self.params = SamplingParams(temperature=0, max_tokens=new_tokens)
        self.folder = Path(folder)

    def __call__(self, batch: dict) -> dict:
        from PIL import Image

        chats = []
        for image, question in zip(batch["image"], batch["question"]):
            opened = Image.open(io.BytesIO(image) if isinstance(image, bytes) else image).convert("RGB")
            content = [{"type": "image_pil", "image_pil": opened}, {"type": "text", "text": str(question)}]
            chats.append([{"role": "user", "content": content}])
        out = self.llm.chat(chats, self.params, use_tqdm=False)
        answers = [one.outputs[0].text.strip() for one in out]
        lines = [
            json.dumps({"id": str(i), "question": str(q), "answer": a}, ensure_ascii=False)
            for i, q, a in zip(batch["id"], batch["question"], answers)
        ]
        name = hashlib.sha1("\n".join(map(str, batch["id"])).encode()).hexdigest()[:16]
        part = self.folder / f".{name}.{os.getpid()}"
        part.write_text("\n".join(lines) + "\n")
        part.rename(self.folder / f"{name}.jsonl")  # whole or not at all
        return {"id": batch["id"], "answer": answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder of images, or a parquet file")
    parser.add_argument("output", type=Path, help="a folder for the answers")
    parser.add_argument("--question", help="the question, for a folder")
    parser.add_argument("--model", required=True, help="a model that vLLM serves and vlprune prunes")
    parser.add_argument("--method", default="script")
    parser.add_argument("--keep", default="64", help="tokens per image, or a ratio such as 0.25")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpus-per-worker", type=float, default=0)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--engine", default="{}", help='more arguments of vllm.LLM, as JSON: {"dtype": "float32"}')
    given = parser.parse_args()

    given.output.mkdir(parents=True, exist_ok=True)
    rows = read_rows(given.source, given.question)
    done = answered(given.output)
    left = [row for row in rows if row["id"] not in done]
    print(f"{len(rows)} images, {len(rows) - len(left)} answered before, {len(left)} to go.", flush=True)
    if left:
        annotate(left, given)
    found = answered(given.output)
    missing = [row["id"] for row in rows if row["id"] not in found]
    print(f"{len(rows) - len(missing)} of {len(rows)} answered, in {given.output}.", flush=True)
    if missing:
        raise SystemExit(f"{len(missing)} have no answer, {missing[0]} for one: start the same command again.")


def annotate(rows: list[dict], given: argparse.Namespace) -> None:
    """Answer these rows on the workers, with progress."""
    import ray

    ray.init(ignore_reinit_error=True, log_to_driver=False)
    settings = {"model": given.model, "keep": given.keep, "method": given.method, "new_tokens": given.max_new_tokens}
    dataset = ray.data.from_items(rows, override_num_blocks=max(1, len(rows) // given.batch_size))
    answers = dataset.map_batches(
        Annotator,
        fn_constructor_kwargs={**settings, "folder": str(given.output.resolve()), "options": json.loads(given.engine)},
        batch_size=given.batch_size,
        concurrency=given.workers,
        num_gpus=given.gpus_per_worker,
    )
    count = 0
    for batch in answers.iter_batches(batch_size=None):
        count += len(batch["id"])
        print(f"{count} of {len(rows)}", flush=True)


if __name__ == "__main__":
    main()

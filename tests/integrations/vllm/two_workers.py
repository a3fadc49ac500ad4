"""Tokens of an engine on two tensor-parallel workers: `python -m …two_workers FOLDER METHOD`, the limits on stdin."""

import json
import sys

from tests.integrations.vllm import checkpoints, engine
from tests.integrations.vllm.checkpoints import picture, question
from tests.integrations.vllm.engine import Ask
from vlprune import get_method


def asks():
    return [Ask(question(i), (picture(i // 2, (60, 40 + 10 * (i % 3))),)) for i in range(8)]


if __name__ == "__main__":
    folder, name = sys.argv[1:]
    llm = engine.start(folder, get_method(name, keep=6), limits=json.loads(sys.stdin.read()), tensor_parallel_size=2)
    processor = checkpoints.reference(folder)[1]
    batch = engine.answers(llm, asks(), processor)
    print("ANSWERS", json.dumps([batch, engine.answers(llm, asks()[::-1], processor)[::-1]]), flush=True)

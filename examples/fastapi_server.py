"""A small web server around one attached model: FastAPI, whose thread pool calls the model.

    pip install fastapi uvicorn python-multipart
    python examples/fastapi_server.py --model llava-hf/llava-1.5-7b-hf --keep 64
    curl -F image=@photo.jpg -F question="What is this?" http://127.0.0.1:8000/ask

A plain `def` endpoint runs in a thread of FastAPI's pool, so requests come in while the model works; the pruner lets
them through one after another, and each gets its own answer. With no --model it serves the pocket model, which knows
drawn scenes (`vlprune scene`). For throughput use an engine that batches: docs/serving.md.
"""

import argparse
import io
from typing import Annotated, Any

from fastapi import FastAPI, File, Form, HTTPException, Query, UploadFile
from PIL import Image, UnidentifiedImageError

from vlprune import Script, attach

MAX_PIXELS = 40_000_000


def make_app(model: Any, processor: Any, keep: int, dual_encoder: Any = None) -> FastAPI:
    """The server; the pruner stays on the model as long as the server lives."""
    app = FastAPI()
    pruner = attach(model, Script(keep=keep), processor=processor, dual_encoder=dual_encoder)

    @app.post("/ask")
    def ask(
        image: Annotated[UploadFile, File()],
        question: Annotated[str, Form()],
        tokens: Annotated[int, Query(ge=1, le=512)] = 32,
    ) -> dict[str, Any]:
        try:
            opened = Image.open(io.BytesIO(image.file.read()))
            if opened.width * opened.height > MAX_PIXELS:
                raise HTTPException(413, f"image: at most {MAX_PIXELS:,} pixels.")
            picture = opened.convert("RGB")
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError) as error:
            raise HTTPException(422, "image: it cannot be read.") from error
        try:
            (answer,) = pruner.ask_many(picture, [question], max_new_tokens=tokens, do_sample=False)
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        return {"answer": answer, "keep": keep}

    return app


if __name__ == "__main__":
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a checkpoint of a supported model; the pocket model if not said")
    parser.add_argument("--keep", type=int, default=64)
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    if given.model is None:
        from vlprune import pocket

        loaded = pocket.load()
    else:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        network = AutoModelForImageTextToText.from_pretrained(given.model, dtype="auto", device_map="auto").eval()
        loaded = network, AutoProcessor.from_pretrained(given.model), None
    uvicorn.run(make_app(loaded[0], loaded[1], given.keep, loaded[2]), host="127.0.0.1", port=given.port)

"""`vlprune studio`: a web page on this machine to look, ask and compare."""

from __future__ import annotations

from typing import Annotated

import typer

from vlprune.cli.options import Device, EncoderName, ModelName, parse_method
from vlprune.cli.terminal import show_steps


def studio(
    model: ModelName = "pocket",
    dual_encoder: EncoderName = None,
    device: Device = "auto",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Where the page is served; the first free one from 7860 on.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Open a page to see what methods keep, ask, and compare.

    The page is on this machine and for this machine only: it is served at 127.0.0.1, and nothing is sent elsewhere.
    Needs gradio: pip install 'vlprune[studio]'.
    """
    from vlprune.studio.serve import Server, check_gradio

    check_gradio()
    with show_steps(f"loading {model}"):
        import torch

        from vlprune.evaluation.load_model import load_model

        if model == "pocket":
            torch.set_num_threads(1)  # two took ten times as long where other programs kept the cores busy
        loaded = load_model(model, dual_encoder, device)
        server = Server(loaded, parse_method, port=port, browser=browser)
    with server:
        print(f"the studio is open at {server.url} (Ctrl-C ends it)", flush=True)
        server.wait()

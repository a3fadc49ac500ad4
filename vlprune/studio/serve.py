"""Open the page on this machine, and on this machine only."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlprune.errors import UserError
from vlprune.evaluation.load_model import LoadedModel, with_loaded_clip
from vlprune.studio.examples import examples_for
from vlprune.studio.fragments import ASSETS

if TYPE_CHECKING:
    from vlprune.studio.visit import ParseMethod

HOST = "127.0.0.1"
PORTS = range(7860, 7960)  # tried in turn where none is said
MAX_UPLOAD = 64 * 2**20  # bytes


def check_gradio() -> None:
    """Raise `UserError` unless gradio is installed."""
    from importlib.util import find_spec

    if find_spec("gradio") is None:
        raise UserError("the studio needs gradio: pip install 'vlprune[studio]'.")


class Server:
    """The page while it is open; close it at the end."""

    def __init__(
        self, loaded: LoadedModel, parse_method: ParseMethod, *, port: int | None = None, browser: bool = False
    ) -> None:
        check_gradio()
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="vlprune-studio-")))
        for name, value in {
            "GRADIO_TEMP_DIR": str(self.folder / "uploads"),  # ours alone, and gone at the end
            "GRADIO_ANALYTICS_ENABLED": "False",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }.items():
            self._stack.callback(_restore, name, os.environ.get(name))
            os.environ[name] = value
        from vlprune.studio.page import build_page

        self.loaded = with_loaded_clip(loaded)
        encoder = loaded.clip if isinstance(loaded.clip, str) else None
        self._page = build_page(self.loaded, parse_method, examples_for(loaded.name, self.folder), encoder)
        self.url = self._launch(port, browser)

    def _launch(self, port: int | None, browser: bool) -> str:
        settings: dict[str, Any] = {
            "server_name": HOST,
            "share": False,
            "inbrowser": browser,
            "max_file_size": MAX_UPLOAD,
            "run_history": False,
            "footer_links": [],
            "show_error": True,
            "quiet": True,
            "prevent_thread_lock": True,
            "ssr_mode": False,
            "pwa": False,
            "mcp_server": False,
            "enable_monitoring": False,
            "strict_cors": True,
            "state_session_capacity": 32,
            "theme": _theme(),
            "css": (ASSETS / "page.css").read_text(encoding="utf-8"),
        }
        self._page.queue(default_concurrency_limit=1, max_size=64)
        for candidate in PORTS if port is None else [port]:
            try:
                _, url, _ = self._page.launch(server_port=candidate, **settings)
                return str(url)
            except OSError as error:
                if port is not None:
                    self.close()
                    raise UserError(f"--port {port}: it is taken; choose another, or leave it out.") from error
        self.close()
        raise UserError(f"--port: all from {PORTS[0]} to {PORTS[-1]} are taken; name a free one.")

    def wait(self) -> None:
        """Serve until the program is stopped."""
        self._page.block_thread()

    def close(self) -> None:
        """Stop serving, and delete all uploads."""
        self._page.close(verbose=False)
        self._stack.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _restore(name: str, value: str | None) -> None:
    """Give an environment variable the value that it had before."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _theme() -> Any:
    """Gradio's plain theme with fonts that the machine has, so that none is fetched, and darker where it is faint."""
    import gradio as gr

    theme = gr.themes.Default(
        primary_hue="blue",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    return theme.set(
        body_text_color_subdued="*neutral_500",
        color_accent="*primary_600",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        link_text_color="*secondary_700",
        link_text_color_dark="*secondary_400",
        link_text_color_visited="*secondary_700",
        link_text_color_visited_dark="*secondary_400",
    )

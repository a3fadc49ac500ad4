"""The files that commands read."""

import io
import sys
from pathlib import Path

from vlprune.cli.files import read_video
from vlprune.cli.terminal import show_steps


def test_a_bar_while_decoding(film, monkeypatch):
    """Where somebody looks; what is piped elsewhere stays clean."""

    class Screen(io.StringIO):
        looked_at = True

        def isatty(self):
            return self.looked_at

    for Screen.looked_at in (True, False):
        monkeypatch.setattr(sys, "stderr", Screen())
        with show_steps("loading") as steps:
            assert len(read_video(Path(film), 4, steps).frames) == 4
        assert ("decoding film.mp4" in sys.stderr.getvalue()) == Screen.looked_at

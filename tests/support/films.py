"""Videos written for a test; without PyAV, which extra `video` has, the test is skipped."""

import pytest


def write_film(path, frames, codec="libx264", every=12, rate=10, **options):
    """A video of numpy frames (height, width, 3), `rate` a second, that can be entered `every` so many frames."""
    av = pytest.importorskip("av")

    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.codec_context.gop_size = "yuv420p", every
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return str(path)

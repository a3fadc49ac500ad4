"""Frames of videos: which ones, and files that lie, end early, or are no videos."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.films import write_film
from tests.support.versions import needs_even_frames
from vlprune.media.image import ImageError
from vlprune.media.video import read_clip, read_frames

GREYS = [np.full((48, 64, 3), 4 * i, dtype=np.uint8) for i in range(60)]
FORMATS = {"film.mp4": "libx264", "film.mov": "mpeg4", "film.mkv": "libx264", "film.webm": "libvpx-vp9"}
FORMATS |= {"film.avi": "mpeg4", "film.ts": "libx264", "film.mpg": "mpeg2video", "film.flv": "flv", "film.wmv": "wmv2"}


def brightness(clip):
    return [frame.mean() / 4 for frame in clip.frames]


@pytest.mark.parametrize("count", [1, 2, 7, 16, 60, 100])
def test_frames_are_spread_evenly(film, count):
    clip = read_clip(film, count)
    numbers = [i * 60 // count for i in range(count)] if count < 60 else list(range(60))
    assert (clip.numbers, clip.total, clip.fps) == (numbers, 60, 10.0)
    assert np.allclose(brightness(clip), numbers, atol=1.5)


@pytest.mark.parametrize("count", [1, 5, pytest.param(16, marks=needs_even_frames)])
def test_they_are_those_that_transformers_takes(film, count):
    from transformers.video_utils import load_video

    frames, metadata = load_video(film, num_frames=count, backend="pyav")
    clip = read_clip(film, count)
    assert np.array_equal(np.stack(clip.frames), frames)
    for name in ("total_num_frames", "fps", "duration"):
        assert clip.metadata[name] == getattr(metadata, name)
    assert clip.metadata["frames_indices"] == list(metadata.frames_indices)


@pytest.mark.parametrize("name", FORMATS)
def test_containers(tmp_path, name):
    """Also those that say nothing of how many frames they hold."""
    rate = 25 if name == "film.mpg" else 10  # MPEG-2 knows certain rates only
    clip = read_clip(write_film(tmp_path / name, GREYS, codec=FORMATS[name], rate=rate), 9)
    assert (clip.total, clip.fps) == (60, rate)
    assert np.allclose(brightness(clip), clip.numbers, atol=1.5)


def test_it_seeks(tmp_path, monkeypatch):
    """Of a film with a key frame every five frames, three frames cost few to decode."""
    from vlprune.media import video

    path = write_film(tmp_path / "film.mp4", GREYS, every=5)
    decoded = []

    class Counting:
        def __init__(self, container):
            self.container = container

        def seek(self, *place, **options):
            self.container.seek(*place, **options)

        def decode(self, stream):
            for frame in self.container.decode(stream):
                decoded.append(frame.pts)
                yield frame

    original = video._decode_frames
    monkeypatch.setattr(video, "_decode_frames", lambda container, *rest: original(Counting(container), *rest))
    assert read_clip(path, 3).numbers == [0, 20, 40]
    assert len(decoded) <= 15


def test_progress(film):
    seen = []
    read_clip(film, 4, tick=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_upright(tmp_path):
    """Telephones write what they see lying, and how to turn it."""
    left = np.zeros((48, 64, 3), dtype=np.uint8)
    left[:, :32] = 255
    path = write_film(tmp_path / "film.mp4", [left] * 3)
    one, zero, end = (0x10000).to_bytes(4, "big"), bytes(4), (0x40000000).to_bytes(4, "big")
    plain = one + zero * 3 + one + zero * 3 + end
    turned = zero + one + zero + b"\xff\xff\x00\x00" + zero * 4 + end  # a quarter to the right
    data = (tmp_path / "film.mp4").read_bytes()
    at = data.index(plain, data.index(b"tkhd"))
    (tmp_path / "film.mp4").write_bytes(data[:at] + turned + data[at + len(plain) :])
    frame = read_clip(path, 1).frames[0]
    assert frame.shape == (64, 48, 3)
    assert frame[:24].mean() > 200 > 50 > frame[40:].mean()


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv", "film.webm"])
@pytest.mark.parametrize("share", [0.3, 0.6])
@pytest.mark.parametrize("options", [{}, {"movflags": "faststart"}])
def test_truncated(tmp_path, name, share, options):
    noise = list(np.random.default_rng(0).integers(0, 256, (60, 48, 64, 3), dtype=np.uint8))
    path = tmp_path / name
    write_film(path, noise, codec=FORMATS[name], **(options if name == "film.mp4" else {}))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ImageError, match="truncated"):
        read_clip(path, 8)


@pytest.mark.parametrize("text", ["", "hello", "#EXTM3U\n#EXTINF:10\nfilm.mp4\n#EXT-X-ENDLIST\n"])
def test_not_a_video(tmp_path, film, text):
    """A playlist neither, though ffmpeg would open what it names."""
    (tmp_path / "film.mp4").write_bytes(Path(film).read_bytes())
    (tmp_path / "list.mp4").write_text(text)
    with pytest.raises(ImageError, match="is not a video"):
        read_clip(tmp_path / "list.mp4", 8)


def test_no_file(tmp_path):
    with pytest.raises(ImageError, match="there is no file"):
        read_clip(tmp_path / "none.mp4", 8)
    with pytest.raises(ImageError, match="is not a file"):
        read_clip(tmp_path, 8)


def test_sound_only(tmp_path):
    av = pytest.importorskip("av")

    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(ImageError, match="sound only"):
        read_clip(tmp_path / "sound.mp4", 8)


def test_no_frames(tmp_path):
    av = pytest.importorskip("av")

    with av.open(str(tmp_path / "empty.avi"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()
    with pytest.raises(ImageError, match="has no frames"):
        read_clip(tmp_path / "empty.avi", 8)


def test_enormous(film):
    with pytest.raises(ImageError, match=r"8 frames of 64 x 48 pixels.* at most 3 frames"):
        read_clip(film, 8, max_pixels=3 * 64 * 48)
    assert len(read_clip(film, 3, max_pixels=3 * 64 * 48).frames) == 3


def test_without_pyav(film, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImageError, match=r"needs PyAV: pip install 'vlprune\[video\]'"):
        read_clip(film, 8)


@pytest.fixture
def folder_of_frames(film, tmp_path):
    """The frames of the film as images, and a file that is none of them."""
    from PIL import Image

    for number, frame in enumerate(read_clip(film, 60).frames):
        Image.fromarray(frame).save(tmp_path / f"{number:03}.png")
    (tmp_path / "notes.txt").write_text("not a frame")
    return tmp_path


@pytest.mark.parametrize("count", [1, 7, 60, 100])
def test_a_folder_of_frames_is_the_film(film, folder_of_frames, count):
    of_file, of_folder = read_clip(film, count), read_frames(folder_of_frames, count)
    assert (of_folder.numbers, of_folder.total) == (of_file.numbers, 60)
    assert all(np.array_equal(a, b) for a, b in zip(of_file.frames, of_folder.frames))
    assert of_folder.size == of_file.size == (64, 48)
    assert of_folder.metadata["duration"] == 60  # a second each


def test_folders_that_are_no_videos(folder_of_frames, tmp_path):
    from PIL import Image

    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match=r"has no frames: images whose names end in \.png"):
        read_frames(tmp_path / "empty", 8)
    with pytest.raises(ImageError, match="there is no folder"):
        read_frames(tmp_path / "none", 8)
    with pytest.raises(ImageError, match="too large"):
        read_frames(folder_of_frames, 8, max_pixels=64 * 48)
    Image.new("RGB", (10, 10)).save(folder_of_frames / "030.png")
    with pytest.raises(ImageError, match=r"frames of several sizes: '030\.png' is not as '000\.png'"):
        read_frames(folder_of_frames, 60)

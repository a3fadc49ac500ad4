"""A few frames of a video, evenly spread; what is held in memory does not grow with the length of the file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlprune.media.image import ImageError, check_file, open_image

if TYPE_CHECKING:
    import numpy as np

#: Endings of names by which a file is taken for a video.
VIDEO_ENDINGS = (
    ".mp4",
    ".m4v",
    ".mov",
    ".mkv",
    ".webm",
    ".avi",
    ".mpg",
    ".mpeg",
    ".ts",
    ".wmv",
    ".flv",
    ".ogv",
    ".3gp",
)
#: Endings of names by which the files of a folder are taken for frames.
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
#: Containers that hold their frames themselves: playlists, which name other files and addresses, are not read.
CONTAINERS = "mov,matroska,avi,mpeg,mpegts,asf,flv,ogg"
#: All frames together, as many as fill a gigabyte in RGB.
MAX_PIXELS = 357_913_941


@dataclass(frozen=True)
class Clip:
    """Some frames of a video: `frames`, each (height, width, 3), and their `numbers` among the `total` of the video."""

    frames: list[np.ndarray]
    numbers: list[int]
    total: int
    fps: float

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the frames."""
        height, width, _ = self.frames[0].shape
        return width, height

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that processors of transformers take with the frames."""
        width, height = self.size
        seconds = self.total / self.fps
        size = {"total_num_frames": self.total, "fps": self.fps, "duration": seconds, "width": width, "height": height}
        return {**size, "frames_indices": self.numbers, "video_backend": "pyav"}


def read_clip(
    path: str | Path,
    count: int,
    *,
    max_pixels: int = MAX_PIXELS,
    tick: Callable[[int, int], None] = lambda done, of: None,
) -> Clip:
    """Take `count` frames of a video, evenly spread from the first on (all, if it has fewer), upright, in RGB.

    The file is first read through without decoding, to learn when its frames come; then it is decoded around the frames
    that are wanted. `tick(done, of)` is called after each. Raises `ImageError` for a file that is missing, no video,
    truncated or damaged, or whose frames would have more than `max_pixels` in all.

    >>> read_clip("no-such.mp4", 8)
    Traceback (most recent call last):
    ...
    vlprune.media.image.ImageError: there is no file 'no-such.mp4'.
    """
    path = check_file(path)
    name = repr(str(path))
    av, container = _open_container(path)
    with container:
        if not container.streams.video:
            raise ImageError(f"{name} has no pictures that can be read: it is empty, truncated, or has sound only.")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise ImageError(f"{name} has pictures of a kind that cannot be decoded, or is damaged.")
        stream.thread_type = "AUTO"
        try:
            times, keys = _frame_times(container, stream)
            numbers = _evenly(len(times), count)
            if not numbers:
                raise ImageError(f"{name} has no frames.")
            pixels = stream.width * stream.height
            if pixels * len(numbers) > max_pixels:
                raise ImageError(
                    f"{name} is too large: {len(numbers):,} frames of {stream.width:,} x {stream.height:,} pixels, of "
                    f"which {max_pixels:,} are held at most; ask for at most {max_pixels // pixels:,} frames."
                )
            frames = []
            for frame in _decode_frames(container, stream, [times[number] for number in numbers], keys):
                frames.append(frame)
                tick(len(frames), len(numbers))
        except (av.FFmpegError, EOFError) as error:
            raise ImageError(f"{name} is a truncated or damaged video.") from error
        rate = stream.average_rate or stream.base_rate
    return Clip(frames, numbers, len(times), float(rate) if rate else 24.0)


def read_frames(folder: str | Path, count: int, *, max_pixels: int = MAX_PIXELS) -> Clip:
    """Take `count` frames, evenly spread as by `read_clip`, of a folder of images, which are its frames by name.

    The time between them is not known and taken to be a second. Raises `ImageError` for a folder without images, frames
    of several sizes, and more than `max_pixels` in all.

    >>> read_frames("no-such-folder", 8)
    Traceback (most recent call last):
    ...
    vlprune.media.image.ImageError: there is no folder 'no-such-folder'.
    """
    import numpy as np

    name, folder = repr(str(folder)), Path(folder)
    if not folder.is_dir():
        raise ImageError(f"there is no folder {name}.")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in IMAGE_ENDINGS)
    if not files:
        raise ImageError(f"{name} has no frames: images whose names end in {', '.join(IMAGE_ENDINGS)}.")
    numbers = _evenly(len(files), count)
    frames: list[np.ndarray] = []
    for number in numbers:
        frame = np.asarray(open_image(files[number], max_pixels=max_pixels // len(numbers)))
        if frames and frame.shape != frames[0].shape:
            raise ImageError(f"{name} has frames of several sizes: {files[number].name!r} is not as {files[0].name!r}.")
        frames.append(frame)
    return Clip(frames, numbers, len(files), 1.0)


def _evenly(total: int, count: int) -> list[int]:
    """The numbers of `count` frames out of `total`, evenly spread from the first on; all, if there are fewer.

    >>> _evenly(10, 4), _evenly(3, 4)
    ([0, 2, 5, 7], [0, 1, 2])
    """
    return [i * total // count for i in range(count)] if total > count else [*range(total)]


def _open_container(path: Path) -> tuple[Any, Any]:
    """PyAV, and the file opened with it."""
    name = repr(str(path))
    try:
        import av
    except ImportError as error:
        raise ImageError(
            f"{name} is a video, and reading videos needs PyAV: pip install 'vlprune[video]', or pip install av."
        ) from error
    try:
        return av, av.open(str(path.resolve()), options={"format_whitelist": CONTAINERS})
    except PermissionError as error:
        raise ImageError(f"{name} may not be read.") from error
    except (av.FFmpegError, OSError, ValueError) as error:
        raise ImageError(f"{name} is not a video, or a truncated one.") from error


def _frame_times(container: Any, stream: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """The times of all frames, in order, and of each key frame its time and the place to seek it at.

    Raises `EOFError` if the file holds less than its header says.
    """
    times, keys, held, end = [], [], 0, 0.0
    for packet in container.demux():
        time = packet.pts if packet.pts is not None else packet.dts
        if time is None:  # the last packet of each stream, which is empty
            continue
        end = max(end, float((time + (packet.duration or 0)) * packet.time_base))
        if packet.stream is not stream:
            continue
        held += 1
        if not packet.is_discard:
            times.append(time)
            if packet.is_keyframe:
                keys.append((time, time if packet.dts is None else packet.dts))
    length = ((container.start_time or 0) + (container.duration or 0)) / 1_000_000
    if held < stream.frames or end < length - max(1.0, 0.05 * length):
        raise EOFError
    return sorted(times), sorted(keys)


def _decode_frames(container: Any, stream: Any, wanted: list[int], keys: list[tuple[int, int]]) -> Iterator[np.ndarray]:
    """The frames at the times that are wanted, or the next after each, decoded from the key frame before."""
    now: int | None = None
    frames: Iterator[Any] = iter(())
    starts = [time for time, _ in keys]
    for time in wanted:
        start, place = keys[max(0, bisect_right(starts, time) - 1)] if keys else (time, time)
        if now is None or start > now:  # nothing from here to there is needed
            container.seek(place, stream=stream)
            frames = container.decode(stream)
        for frame in frames:
            now = frame.pts
            if now is None or now >= time:
                break
        else:
            raise EOFError
        yield _upright(frame)


def _upright(frame: Any) -> np.ndarray:
    """The pixels of a frame (height, width, 3) in RGB, rotated as its metadata says."""
    import numpy as np

    pixels = frame.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90))) if frame.rotation else pixels

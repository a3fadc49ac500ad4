"""Odd and hostile input, drawn at random: selections, layouts, images, videos, prompts and checkpoints.

    python benchmarks/fuzz.py selections --cases 1000000   # against float64, in numpy
    python benchmarks/fuzz.py layouts --cases 100000       # against lists that are shortened one token at a time
    python benchmarks/fuzz.py images --cases 10000         # an RGB image, or one sentence
    python benchmarks/fuzz.py videos --cases 500
    python benchmarks/fuzz.py prompts --cases 10000        # an answer, or one sentence
    python benchmarks/fuzz.py configs --cases 1000         # `vlprune ask`: exit code 0, or 2 and one sentence

Case i of a campaign is drawn from (--seed, i) alone, so that it can be made again by itself: --first i --cases 1. A
campaign stops after --cases or after --seconds, and goes on from where it stopped if --state names a file. What went
wrong is printed with its number, and the exit code is 1.
"""

import argparse
import atexit
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

#: From a random source to the kind of case that was drawn; raises `Wrong` if it went wrong.
Case = Callable[[random.Random], str]


class Wrong(Exception):
    """What should not have happened, in a sentence."""


def expect(right: Any, what: str) -> None:
    if not right:
        raise Wrong(what)


def expect_close(what: str, found: np.ndarray, wanted: np.ndarray, rtol: float, atol: float) -> None:
    if not (np.abs(found - wanted) <= atol + rtol * np.abs(wanted)).all():  # the words are costly, so not before
        raise Wrong(f"{what} {found} is not {wanted}")


def one_sentence(error: BaseException) -> None:
    """An error is one line that ends like a sentence."""
    text = str(error)
    expect(text and "\n" not in text and text.rstrip(")").endswith("."), f"not one sentence: {text[:200]!r}")


# --- selections, against float64 ---

CLOSE = 2e-4  # of the largest v²: choices nearer than that are ties of float32


def drawn_tokens(draw: random.Random) -> tuple[torch.Tensor, str]:
    """(B, n, d) tokens of some odd kind."""
    rows, n, d = draw.choice([1, 2, 3]), draw.choice([1, 2, 3, 5, 8, 13, 24, 40]), draw.choice([1, 2, 4, 16, 48])
    noise = np.random.default_rng(draw.getrandbits(32))
    x = noise.normal(size=(rows, n, d)) + draw.choice([0.0, 0.5, 2.0]) * noise.normal(size=(rows, 1, d))
    kind = draw.choice(["plain", "duplicates", "zeros", "ties", "scales", "equal", "signs", "half", "bfloat", "double"])
    if kind == "duplicates":
        x = x[:, noise.integers(0, n, n)]
    elif kind == "zeros":
        x[:, noise.random(n) < 0.4] = 0
    elif kind == "ties":
        x = np.round(x)
    elif kind == "scales":
        x *= 10.0 ** noise.uniform(-12, 12, size=(rows, n, 1))
    elif kind == "equal":
        x[:] = x[:, :1]
    elif kind == "signs":
        x[:, n // 2 :] = -x[:, : n - n // 2]
    dtypes = {"half": torch.float16, "bfloat": torch.bfloat16, "double": torch.float64}
    return torch.from_numpy(x).to(dtypes.get(kind, torch.float32)), kind


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n, k) of the rows of x (n, d) and y (k, d); 0 where one of them has no length."""
    lengths = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=1)
    return np.divide(x @ y.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def scores64(s: np.ndarray, tau: float, gamma: float, graph: str) -> np.ndarray:
    """Redundancy by the paper's formula, from cosines (n, n)."""
    n = len(s)
    even = np.arange(n) % 2 == 0
    meets = ~np.eye(n, dtype=bool) if graph == "full" else even[:, None] != even[None]
    edges = meets & (s >= tau)
    degree, met = edges.sum(1), meets.sum(1)
    mean = np.where(edges, s, 0).sum(1) / np.maximum(degree, 1)
    alone = np.where(meets, s, 0).sum(1) / np.maximum(met, 1)
    return np.where(degree > 0, degree * np.exp(gamma * (mean - tau)), alone)


def relevance64(x: np.ndarray, query: np.ndarray) -> np.ndarray | None:
    """Relevance in [0, 1] by the paper's formula; None where float32 may see a difference or none."""
    raw = cosines(x, query.mean(0, keepdims=True))[:, 0]
    low, high = raw.min(), raw.max()
    if 2e-7 < high - low < 1e-3:
        return None
    return (raw - low) / (high - low) if high > low + 1e-6 else np.ones(len(raw))


def check_order(kernel: np.ndarray, order: list[int], among: set[int] | None) -> None:
    """Every choice adds as much as the best one could, up to rounding, until there is nothing left to add."""
    gains, first = kernel.diagonal().copy(), np.ones(len(kernel), dtype=bool)
    if among:
        first[:] = False
        first[list(among)] = True
    vectors = np.zeros((len(order), len(kernel)))
    scale = gains.max()
    for t, j in enumerate(order):
        if not (first & (gains > -np.inf)).any():
            first[:] = True  # all of `among` are chosen
        best = gains[first].max()
        if best <= 1e-3 * scale:  # what is left is rounding
            return
        if not first[j] or gains[j] < best - CLOSE * scale:
            raise Wrong(f"choice {t} is {j}, which adds {gains[j]:.6g}; another would add {best:.6g}")
        row = (kernel[j] - vectors[:t].T @ vectors[:t, j]) / np.sqrt(gains[j])
        vectors[t] = row
        gains -= row**2
        gains[order[: t + 1]] = -np.inf


def selection_case(draw: random.Random) -> str:
    from vlprune.selection import graph_keep, select_script
    from vlprune.selection.fusion import fuse

    x, kind = drawn_tokens(draw)
    rows, n, d = x.shape
    m = draw.randint(1, n)
    settings = {
        "tau": draw.choice([0.3, 0.0, -1.0, 0.9, 1.0]),
        "gamma": draw.choice([5.0, 0.0, 1.0]),
        "graph": draw.choice(["bipartite", "full"]),
        "kernel": draw.choice(["s_prime", "s"]),
        "fusion": draw.choice(["supplement", "released", "filter"]),
        "rho": draw.choice([0.1, 0.5, 1.0]),
    }
    noise = np.random.default_rng(draw.getrandbits(32))
    query = torch.from_numpy(noise.normal(size=(rows, draw.randint(1, 3), d))).to(x.dtype)
    if draw.random() < 0.05:  # values that are none
        where, value = draw.choice([x, query]), draw.choice([np.nan, np.inf, -np.inf])
        where[draw.randrange(rows), draw.randrange(where.shape[1]), draw.randrange(d)] = value
        try:
            select_script(x, query, m, **settings)
        except ValueError as error:
            expect("must be finite" in str(error), f"another error: {error}")
            return "not finite: refused"
        raise Wrong(f"{value} was taken")
    found = select_script(x, query, m, **settings)
    for b in range(rows):
        tokens, kept, order = x[b].double().numpy(), found.kept[b].tolist(), found.order[b].tolist()
        expect(kept == sorted(set(kept)) and len(kept) == m, f"kept {kept}")
        expect(len(set(order)) == len(order) and set(order) <= set(range(n)), f"order {order}")
        s = cosines(tokens, tokens)
        survivors = None
        if found.redundancy is not None:
            # a cosine of float32 that lies at the threshold may fall on either side of it
            unsure = (np.abs(s - settings["tau"]) < 1e-5).any()
            got = found.redundancy[b].double().numpy()
            if not unsure:
                wanted = scores64(s, settings["tau"], settings["gamma"], settings["graph"])
                expect_close("redundancy", got, wanted, rtol=1e-3, atol=1e-4)
            keep = max(m, int(settings["rho"] * n + 0.5)) if settings["fusion"] == "filter" else m
            survivors = graph_keep(found.redundancy[b : b + 1], keep)
            merged = fuse(found.order[b : b + 1], survivors, m, rule=settings["fusion"])
            expect(merged[0].tolist() == kept, f"kept {kept} is not fused {merged.tolist()}")
        else:
            expect(sorted(order[:m]) == kept, f"kept {kept} is not the first of {order}")
        wanted = relevance64(tokens, query[b].double().numpy())
        if wanted is None:
            continue
        got = found.relevance[b].double().numpy()
        expect_close("relevance", got, wanted, rtol=1e-5, atol=2e-3 if n > 1 else 1e-6)
        weight = got ** (1.0 if settings["kernel"] == "s_prime" else 0.5)
        among = set(survivors[0].tolist()) if settings["fusion"] == "filter" and survivors is not None else None
        check_order(weight[:, None] * s * weight, order, among)
    return kind


# --- layouts, against lists ---


def layout_case(draw: random.Random) -> str:
    from vlprune.pruning.layout import cached_beginning, drop_columns, join_layouts

    rows, side = draw.randint(1, 4), draw.choice(["left", "right", "none"])
    lengths = [draw.randint(1, 14) for _ in range(rows)]
    if side == "none":
        lengths = [max(lengths)] * rows
    width = max(lengths) + draw.choice([0, 0, 2])  # padding that all rows share
    if side == "none":
        width = max(lengths)
    ids, mask, drop, order = _drawn_rows(draw, lengths, width, side)
    layout, wanted = _shortened(drop_columns, ids, mask, drop, order)
    _check_layout(layout, wanted, mask, drop)
    if (side != "left" and len(set(lengths)) > 1) or draw.random() < 0.5:
        return f"{side}, one turn"
    # a second turn: what was generated, then new columns, of which some go
    said, new = draw.randint(0, 3), draw.randint(1, 8)
    spoken = torch.tensor([[draw.randint(500, 599) for _ in range(said)] for _ in range(rows)], dtype=torch.long)
    more, more_mask, more_drop, more_order = _drawn_rows(draw, [new] * rows, new, "none")
    whole = torch.cat([ids, spoken, more], dim=1)
    whole_mask = torch.cat([mask, torch.ones_like(spoken), more_mask], dim=1)
    held = layout.after + (draw.randint(0, said) if said else 0)
    first = cached_beginning(layout, whole, whole_mask, held)
    start = first.before
    gone = torch.cat([torch.zeros(rows, ids.shape[1] + said, dtype=torch.bool), more_drop], dim=1)[:, start:]
    places = torch.cat([torch.arange(ids.shape[1] + said).repeat(rows, 1), more_order + ids.shape[1] + said], dim=1)
    rest, tail = _shortened(drop_columns, whole[:, start:], whole_mask[:, start:], gone, places[:, start:] - start)
    both = join_layouts(first, rest, whole)
    begun = held - layout.after
    front = [words + row[:begun] for words, row in zip(wanted, spoken.tolist())]
    expect(_words(both) == [a + b for a, b in zip(front, tail)], "the second turn is not what lists say")
    return f"{side}, two turns"


def _drawn_rows(draw: random.Random, lengths: list[int], width: int, side: str) -> tuple[torch.Tensor, ...]:
    """Ids, a mask, what to drop of them, and an order in which some kept ones have changed places."""
    rows = len(lengths)
    ids, mask = torch.zeros(rows, width, dtype=torch.long), torch.zeros(rows, width, dtype=torch.long)
    drop, order = torch.zeros(rows, width, dtype=torch.bool), torch.arange(width).repeat(rows, 1)
    for b, length in enumerate(lengths):
        first = width - length if side == "left" else 0
        columns = list(range(first, first + length))
        ids[b, columns] = torch.tensor([draw.randint(1, 499) for _ in columns])
        mask[b, columns] = 1
        image = [c for c in columns if draw.random() < draw.choice([0.0, 0.5, 0.9])]
        for c in image[: len(columns) - 1]:
            drop[b, c] = draw.random() < 0.6
        left = [c for c in image if not drop[b, c]]
        if draw.random() < 0.2:
            moved = left[:]
            draw.shuffle(moved)
            order[b, left] = torch.tensor(moved, dtype=torch.long)
    return ids, mask, drop, order


def _shortened(drop_columns: Any, ids: Any, mask: Any, drop: Any, order: Any) -> tuple[Any, list[list[int]]]:
    """The layout, and what each row says by a list that loses one token at a time.

    Where nothing is lost at all, nothing changes places either: keeping all tokens is the plain model.
    """
    lost, real = drop.sum(1).tolist(), mask.sum(1).tolist()
    wanted = []
    for b in range(len(ids)):
        stay = [c for c in range(ids.shape[1]) if mask[b, c] and not drop[b, c]]
        left = [(int(order[b, c]) if any(lost) else c, int(ids[b, c])) for c in stay]
        wanted.append([word for _, word in sorted(left)])
    return drop_columns(ids, mask, drop, order, lost, real), wanted


def _words(layout: Any) -> list[list[int]]:
    """The real tokens of each row of a short prompt."""
    ids = layout.gather(layout.ids)
    return [[int(word) for word, on in zip(row, mask) if on] for row, mask in zip(ids, layout.mask)]


def _check_layout(layout: Any, wanted: list[list[int]], mask: Any, drop: Any) -> None:
    expect(_words(layout) == wanted, f"{_words(layout)} is not {wanted}")
    expect(layout.fillers or bool(layout.mask.all()), "there are fillers, and the layout denies it")
    if bool(drop.any()):
        expect(torch.equal(layout.dropped(mask), drop & mask.bool()), "other tokens are gone")
    for row in layout.mask.tolist():  # padding lies on one side
        expect(sum(a != b for a, b in pairwise(row)) <= 1 or not layout.fillers, f"holes in {row}")
    places = torch.arange(mask.shape[1]).repeat(len(mask), 1)
    for renumber in (False, True):
        got = layout.positions(mask, places, renumber)
        for b in range(len(mask)):
            for t in range(layout.after):
                if layout.mask[b, t]:
                    column = int(layout.index[b, t])
                    before = int((drop[b, : column + 1] & mask[b, : column + 1].bool()).sum()) if renumber else 0
                    expect(int(got[b, t]) == column - before, "a position is wrong")


# --- images and videos ---


def drawn_image(draw: random.Random) -> tuple[bytes, str]:
    """The bytes of an image file, whole or not."""
    from PIL import Image

    noise = np.random.default_rng(draw.getrandbits(32))
    sizes = [(1, 1), (1, 300), (3, 5), (17, 16), (64, 48), (400, 2), (300, 1)]
    width, height = draw.choice(sizes)
    image = Image.fromarray(noise.integers(0, 256, (height, width, 3), dtype=np.uint8))
    form = draw.choice(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
    mode = draw.choice(["RGB", "L", "CMYK", "1", "P", "RGBA", "I;16", "LA", "F"])
    if mode == "I;16":
        image = Image.fromarray(noise.integers(0, 65536, (height, width), dtype=np.uint16))
    else:
        image = image.convert(mode)
    file, more = io.BytesIO(), {}
    if form in ("GIF", "WEBP", "TIFF", "PNG") and draw.random() < 0.3:
        more = {"save_all": True, "append_images": [image] * draw.randint(1, 3)}
    if form in ("JPEG", "WEBP", "PNG") and draw.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = draw.choice([0, 1, 3, 6, 8, 9, 65535])
        more["exif"] = exif
    try:
        image.save(file, form, **more)
    except (OSError, ValueError, KeyError, SystemError):
        file = io.BytesIO()
        image.convert("RGB").save(file, form)
    data, harm = bytearray(file.getvalue()), draw.choice(["none", "cut", "flip", "bomb", "type", "noise", "doubled"])
    if harm == "cut":
        del data[draw.randint(0, len(data)) :]
    elif harm == "flip":
        for _ in range(draw.choice([1, 3, 30])):
            data[draw.randrange(min(len(data), draw.choice([64, 10**9])))] ^= 1 << draw.randrange(8)
    elif harm == "bomb" and form in ("PNG", "BMP", "GIF"):
        at = {"PNG": 16, "BMP": 18, "GIF": 6}[form]
        data[at : at + 4] = bytes([draw.randrange(256) for _ in range(4)])
    elif harm == "type":
        data[: draw.randint(1, 12)] = draw.choice([b"%!PS-Adobe", b"<svg ", b"\x1f\x8b", b"PK\x03\x04", b"GIF89a", b""])
    elif harm == "noise":
        data = bytearray(noise.bytes(draw.randint(0, 400)))
    elif harm == "doubled":
        data = data + data
    return bytes(data), f"{form}, {harm}"


def image_case(draw: random.Random) -> str:
    from vlprune.media.image import ImageError, open_image

    data, kind = drawn_image(draw)
    path = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}{draw.choice(['.png', '.jpg', '.gif', '', '.mp4.png'])}"
    path.write_bytes(data)
    begun = time.time()
    try:
        image = open_image(path)
    except ImageError as error:
        one_sentence(error)
        kind += ": refused"
    else:
        expect(image.mode == "RGB" and min(image.size) > 0, f"{image.mode} {image.size}")
    finally:
        path.unlink()
    expect(time.time() - begun < 20, f"it took {time.time() - begun:.0f} s")
    return kind


def video_case(draw: random.Random) -> str:
    import av

    from vlprune.media.image import ImageError
    from vlprune.media.video import read_clip

    noise = np.random.default_rng(draw.getrandbits(32))
    form, codec = draw.choice([("mp4", "mpeg4"), ("matroska", "mpeg4"), ("avi", "mjpeg"), ("mp4", "h264")])
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=draw.choice([1, 24, 60]))
        stream.width, stream.height = draw.choice([(16, 16), (64, 48), (128, 16)])
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for _ in range(draw.randint(1, 12)):
            pixels = noise.integers(0, 256, (stream.height, stream.width, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    data, harm = bytearray(file.getvalue()), draw.choice(["none", "cut", "flip", "noise"])
    if harm == "cut":
        del data[draw.randint(0, len(data)) :]
    elif harm == "flip":
        for _ in range(draw.choice([1, 5, 50])):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif harm == "noise":
        data[draw.randrange(len(data)) :] = noise.bytes(200)
    path = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}.{draw.choice(['mp4', 'mkv', 'avi'])}"
    path.write_bytes(data)
    try:
        clip = read_clip(path, draw.choice([1, 4, 16]))
        expect(clip.frames and all(frame.shape[2] == 3 for frame in clip.frames), "no frames")
        return f"{form}, {harm}"
    except ImageError as error:
        one_sentence(error)
        return f"{form}, {harm}: refused"
    finally:
        path.unlink()


# --- prompts ---

PIECES = [
    *("is there a red star?", "what color is the circle?", "<image>", "<image><image>", "USER:", "ASSISTANT:", "</s>"),
    *(
        "\x00",
        "\x07\x1b[31m",
        "\u202e\u05e9\u05dc\u05d5\u05dd",
        "\U0001f600",
        "\u0645\u0631\u062d\u0628\u0627",
        "\n\n\t",
    ),
    *("a" * 300, "\u200b", "%s %d {0} {{x}}", "Answer yes or no.", "'; DROP", "<s>"),
]


def make_prompt_case() -> Case:
    from PIL import Image

    from vlprune import FastV, Script, ScriptPlus, attach, pocket
    from vlprune.pruning.feature_cache import FeatureCache

    torch.set_num_threads(1)
    model, processor, clip = pocket.load()
    seen = FeatureCache(2**24)  # the tower runs once
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (192, 192, 3), dtype=np.uint8))

    def case(draw: random.Random) -> str:
        kind = draw.choice(["one", "one", "several", "several", "several", "empty", "random", "random", "long"])
        if kind == "long":
            question = " ".join(draw.choice(["red", "star", "the"]) for _ in range(draw.choice([300] * 19 + [10_000])))
        elif kind == "random":
            question = "".join(chr(draw.choice([*range(1, 256), 0x5D0, 0x4E00, 0x1F600])) for _ in range(40))
        elif kind == "empty":
            question = draw.choice(["", " ", "\n", "\u200b", "<image>", "Please answer yes or no."])
        else:
            question = " ".join(draw.choices(PIECES, k=1 if kind == "one" else draw.randint(2, 6)))
        method = draw.choice([Script(keep=16), ScriptPlus(keep=16), FastV(keep=64)])
        encoder = clip if draw.random() < 0.7 and method.name != "fastv" else None
        options = {"processor": processor, "dual_encoder": encoder, "feature_cache": seen}
        with warnings.catch_warnings(), attach(model, method, **options) as pruner:
            warnings.simplefilter("ignore")
            try:
                answers = pruner.ask_many(image, [question], max_new_tokens=1)
            except ValueError as error:
                one_sentence(error)
                return f"{kind}: refused"
            expect(len(answers) == 1 and isinstance(answers[0], str), f"{answers}")
            expect(pruner.last.before == 576, f"{pruner.last.before} tokens")
        return kind

    return case


# --- checkpoints with fields missing or absurd ---

ABSURD: list[Any] = [None, -1, 0, 1, 10**9, 2**70, 0.5, "x", "", [], {}, [1, 2], {"a": 1}, True, float("nan")]
FILES = ["config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json"]


def make_config_case() -> Case:
    from PIL import Image

    from vlprune import pocket
    from vlprune.evaluation import one_question  # noqa: F401  so that no child has to import it

    torch.set_num_threads(1)  # threads do not survive a fork
    pocket.load()
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    photo = place / "photo.png"
    Image.fromarray(np.zeros((48, 48, 3), dtype=np.uint8)).save(photo)
    source = Path(pocket.path())
    files = {path.name: path for path in source.iterdir() if path.is_file()}

    def case(draw: random.Random) -> str:
        folder = place / "model"
        folder.mkdir()
        for name, path in files.items():
            (folder / name).symlink_to(path)
        target = folder / draw.choice([name for name in FILES if name in files])
        content = json.loads(target.read_text())
        target.unlink()
        kind = _spoil(draw, content)
        target.write_text(json.dumps(content))
        if draw.random() < 0.05:
            target.write_text(draw.choice(["", "{", "[]", "null", '"x"', "\x00", json.dumps(content)[:-9]]))
            kind = "no JSON"
        try:
            _ask(
                [
                    "ask",
                    str(photo),
                    "is there a red star?",
                    "--model",
                    str(folder),
                    "--keep",
                    "64",
                    "--max-new-tokens",
                    "1",
                ]
            )
        finally:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        return f"{target.name}, {kind}"

    return case


def _spoil(draw: random.Random, content: Any) -> str:
    """Leave a field out of a tree of JSON, or put something absurd in its place."""
    here = content
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return "unchanged"
        key = draw.choice(keys)
        deeper = isinstance(here[key], (dict, list)) and len(here[key]) > 0
        if deeper and draw.random() < 0.8:
            here = here[key]
            continue
        if draw.random() < 0.3:
            del here[key]
            return "missing"
        here[key] = draw.choice(ABSURD)
        return "absurd"


def _ask(words: list[str], seconds: int = 60, memory: int = 6 * 2**30) -> None:
    """Run the program in a child of bounded time and memory: it ends with 0, or with 2 and one sentence."""
    said = Path(tempfile.gettempdir()) / f"fuzz-{os.getpid()}.txt"
    child = os.fork()
    if not child:
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            errors = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors, 2)
            from vlprune.cli.app import main

            code: Any = 70
            try:
                main(words)
            except SystemExit as end:
                code = end.code
            except BaseException:
                import traceback

                traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 70)
    status = os.waitpid(child, 0)[1]
    text = said.read_text(errors="replace")
    said.unlink()
    expect(os.WIFEXITED(status), f"ended by signal {os.WTERMSIG(status)}: {text[-300:]}")
    code = os.WEXITSTATUS(status)
    expect(code in (0, 2) and "Traceback" not in text, f"exit code {code}: {text[-900:]}")
    if code == 2:
        lines = [line for line in text.splitlines() if line.startswith("vlprune: ") and not line.endswith("...")]
        expect(lines and lines[-1].rstrip().endswith((".", ".)")), f"no sentence: {text[-300:]}")


# --- campaigns ---

CAMPAIGNS: dict[str, Callable[[], Case]] = {
    "selections": lambda: selection_case,
    "layouts": lambda: layout_case,
    "images": lambda: image_case,
    "videos": lambda: video_case,
    "prompts": make_prompt_case,
    "configs": make_config_case,
}


def run(name: str, cases: int, seed: int = 0, first: int = 0, seconds: float = float("inf"), tell: Any = None) -> Any:
    """Run the cases from `first` on; returns (how many of each kind, what went wrong by number, the next number)."""
    case, kinds, wrong = CAMPAIGNS[name](), Counter(), {}
    end, number = time.time() + seconds, first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while number < first + cases and time.time() < end:
            try:
                kinds[case(random.Random(f"{seed} {name} {number}"))] += 1
            except Wrong as error:
                wrong[number] = str(error)
            except Exception as error:
                wrong[number] = f"{type(error).__name__}: {error}"
            number += 1
            if tell is not None and (number % 1000 == 0 or number - 1 in wrong):
                tell(number, wrong.get(number - 1))
    return kinds, wrong, number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", choices=sorted(CAMPAIGNS))
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--state", type=Path, help="a file that keeps how far it came")
    given = parser.parse_args()
    torch.set_num_threads(1)
    done, found = given.first, {}
    if given.state is not None and given.state.is_file():
        kept = json.loads(given.state.read_text())
        done, found = kept["next"], kept["wrong"]

    def tell(number: int, what: str | None) -> None:
        if what is not None:
            found[str(number - 1)] = what
            print(f"case {number - 1}: {what}", flush=True)
        if given.state is not None:
            half = given.state.with_name(f".{given.state.name}.part")
            half.write_text(json.dumps({"next": number, "wrong": found}))
            os.replace(half, given.state)

    begun, left = time.time(), given.first + given.cases - done
    kinds, _, number = run(given.campaign, max(0, left), given.seed, done, given.seconds, tell)
    tell(number, None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    for kind, count in sorted(kinds.items()):
        print(f"  {kind}: {count:,}")
    took = time.time() - begun
    print(
        f"{given.campaign}: cases {given.first:,} to {number:,} (seed {given.seed}), {len(found)} wrong, {took:.0f} s, "
        f"at most {peak:.2f} GiB"
    )
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()

"""Outputs are written whole or not at all."""

import builtins
import errno
import io
import os
import pathlib
import stat
from pathlib import Path

import pytest

from vlprune.media.outputs import OutputError, check_output, replace_when_done, write_text

OLD = "what was there, made by vlprune"


class FullDisk(io.FileIO):
    """A file on a disk with room for some bytes more."""

    room = 64

    def fileno(self):
        raise io.UnsupportedOperation  # or else PIL writes JPEGs past `write`

    def write(self, data):
        if len(data) > self.room:
            super().write(bytes(data)[: self.room])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.fixture
def full_disk(monkeypatch):
    """Every file that is opened to write bytes or text takes 64 bytes, and then the disk is full."""
    plain = io.open

    def opened(file, mode="r", *rest, **more):
        if not set("wax+") & set(mode) or isinstance(file, int):
            return plain(file, mode, *rest, **more)
        raw = FullDisk(file, mode.replace("b", "").replace("t", ""))
        return raw if "b" in mode else io.TextIOWrapper(io.BufferedWriter(raw, 16), encoding="utf-8")

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(builtins, "open", opened)
    if hasattr(pathlib, "_NormalAccessor"):  # Python 3.10 remembers io.open
        monkeypatch.setattr(pathlib._NormalAccessor, "open", staticmethod(opened))


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir() if path.is_file())


def test_a_full_disk_leaves_what_was_there(tmp_path, full_disk):
    path = tmp_path / "a.md"
    write_text(path, OLD)
    with pytest.raises(OSError, match="No space left") as error:
        write_text(path, "new " * 100)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_text() == OLD
    assert names(tmp_path) == ["a.md"]


@pytest.mark.usefixtures("short_demo")
@pytest.mark.parametrize(
    ("command", "out"),
    [
        (("scene", "-o", "scene.png"), "scene.png"),
        (("demo", "--model", "pocket", "--keep", "16", "--force", "--out", "kept.png"), "kept.png"),
        (("demo", "--model", "pocket", "--keep", "16", "--force", "--out", "kept.svg"), "kept.svg"),
        (("ask", "PHOTO", "what?", "--force", "--show", "kept.jpg", "--max-new-tokens", "1"), "kept.jpg"),
        (("bench", "--keep", "16", "--new", "1", "--repeats", "1", "--out", "table.md"), "table.md"),
        (("report", "run", "-o", "page.html"), "page.html"),
    ],
    ids=lambda case: case if isinstance(case, str) else case[0],
)
def test_commands_on_a_full_disk(program, photo, tmp_path, request, command, out):
    from vlprune.evaluation.result import StudyResult
    from vlprune.evaluation.run_folder import RunFolder

    if "run" in command:
        StudyResult("First", []).save(RunFolder(tmp_path / "run", "eval", {}).path)
    (tmp_path / out).write_text(OLD)
    request.getfixturevalue("full_disk")
    code, _, err = program(*(photo if word == "PHOTO" else word for word in command))
    assert code == 2, err
    assert out in err.splitlines()[-1]
    assert "No space left on device" in err
    assert (tmp_path / out).read_text() == OLD
    assert names(tmp_path) == [out]


def test_a_study_on_a_full_disk(tmp_path, request):
    """What was saved before stays, and the run does not count as finished."""
    from matplotlib.figure import Figure

    from vlprune.evaluation.result import StudyResult

    request.getfixturevalue("full_disk")
    with pytest.raises(OSError, match="No space left"):
        StudyResult("First", [], {"curve": Figure()}).save(tmp_path)
    assert names(tmp_path) == []


def test_links_stay_and_devices_are_not_replaced(tmp_path):
    (tmp_path / "real.md").write_text(OLD)
    (tmp_path / "link.md").symlink_to(tmp_path / "real.md")
    write_text(check_output(tmp_path / "link.md"), "new")
    assert (tmp_path / "link.md").is_symlink()
    assert (tmp_path / "real.md").read_text() == "new"
    write_text(check_output("/dev/null"), "nothing")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_stopped_in_the_middle(tmp_path):
    def write_half():
        with replace_when_done(tmp_path / "a.png") as half:
            assert half.suffix == ".png"
            half.write_bytes(b"half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "a.md").write_text(OLD)
    monkeypatch.setattr(os, "access", lambda place, how: Path(place) != tmp_path)
    with pytest.raises(OutputError, match=r"a\.md' cannot be written"):
        check_output(tmp_path / "a.md")

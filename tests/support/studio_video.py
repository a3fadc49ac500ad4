"""`python -m tests.support.studio_video FOLDER FILM`: what a session says of a video, as JSON."""

import json
import sys
import threading

if __name__ == "__main__":
    from tests.support import torchvision_stand_in as stand_in  # noqa: F401

from tests.support.onevision import save
from vlprune import Script
from vlprune.evaluation.load_model import load_model
from vlprune.studio.canvas import draw_canvas
from vlprune.studio.session import Session

if __name__ == "__main__":
    folder, film = sys.argv[1:]
    save(folder)
    session = Session(load_model(folder, None, "cpu", video=True), threading.Lock())
    session.open(film, frames=4)
    choice = session.select("what is it ?", Script(keep=12))
    *_, answered = session.answer("what is it ?", Script(keep=12), max_new_tokens=3)
    record = choice.record
    said = {"kind": record.kind, "before": record.before, "after": record.after, "frames": len(record.parts)}
    said |= {"pictures": len(choice.background), "answered": answered.cost is not None}
    print(json.dumps({**said, "rects": draw_canvas(choice.background, record).count("<rect")}))

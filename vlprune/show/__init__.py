"""Pictures of what was kept and why. Needs pillow and matplotlib, which load when a function is called."""

from vlprune.show.panels import Mark
from vlprune.show.picture import draw_contact_sheet, draw_picture, save_contact_sheet, save_picture
from vlprune.show.titles import picture_title

__all__ = ["Mark", "draw_contact_sheet", "draw_picture", "picture_title", "save_contact_sheet", "save_picture"]

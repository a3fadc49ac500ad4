"""Pictures of what was kept and why. Needs pillow and matplotlib, which load when a function is called."""

from vlprune.show.panels import Mark
from vlprune.show.picture import draw_contact_sheet, draw_picture, save_contact_sheet, save_picture

__all__ = ["Mark", "draw_contact_sheet", "draw_picture", "save_contact_sheet", "save_picture"]

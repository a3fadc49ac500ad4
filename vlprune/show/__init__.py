"""Pictures of what was kept and why. Needs pillow and matplotlib, which load when a function is called."""

from vlprune.media.image import ImageError, as_seen, open_image
from vlprune.show.picture import Mark, contact_sheet, picture, save_contact_sheet, save_picture

__all__ = [
    "ImageError",
    "Mark",
    "as_seen",
    "contact_sheet",
    "open_image",
    "picture",
    "save_contact_sheet",
    "save_picture",
]

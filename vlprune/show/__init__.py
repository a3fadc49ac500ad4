"""Pictures of what was kept and why. Needs pillow and matplotlib, which load when a function is called."""

from vlprune.show.image import ImageError, as_seen, open_image
from vlprune.show.picture import Mark, picture, save_picture

__all__ = ["ImageError", "Mark", "as_seen", "open_image", "picture", "save_picture"]

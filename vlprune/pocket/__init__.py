"""The embedded model: a small LLaVA that answers questions about drawn scenes, with a CLIP text tower beside it."""

from vlprune.pocket.world import benchmark, questions, scenes

__all__ = ["benchmark", "questions", "scenes"]

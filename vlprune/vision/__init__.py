"""A vision tower that computes less: equal images once, and patches that look alike merged between its layers."""

from vlprune.vision.cheaper_tower import CheaperTower

__all__ = ["CheaperTower"]

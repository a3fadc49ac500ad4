"""The entry point by which lmms-eval learns of the model "vlprune"; it names classes and imports none."""

from typing import Any

CLASSES = "vlprune.integrations.lmms_eval.model"


def manifest() -> Any:
    """The model's names: one for tasks that generate, one for tasks that compare likelihoods (`--force_simple`)."""
    from lmms_eval.models.registry_v2 import ModelManifest

    paths = {"chat_class_path": f"{CLASSES}.PrunedChat", "simple_class_path": f"{CLASSES}.PrunedSimple"}
    return ModelManifest(model_id="vlprune", **paths)

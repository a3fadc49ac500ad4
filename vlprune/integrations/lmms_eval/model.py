"""The classes that lmms-eval makes for `--model vlprune`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from lmms_eval.api.instance import GenerationResult
from lmms_eval.api.model import lmms
from lmms_eval.utils import simple_parse_args_string
from tqdm import tqdm

from vlprune.evaluation.load_model import load_model
from vlprune.integrations.lmms_eval.answer_file import AnswerFile
from vlprune.integrations.lmms_eval.answerer import Answerer
from vlprune.integrations.lmms_eval.answering import Answering
from vlprune.integrations.lmms_eval.samples import Request
from vlprune.integrations.lmms_eval.settings import method_of


class PrunedChat(lmms):
    """A model of any family that vlprune knows, with a method attached, for tasks that generate.

    Args, as `--model_args` takes them:
        pretrained: pocket, a folder, or the id of a model on the hub.
        method: a name (script), with a preset (visionzip@64), or none: then nothing is dropped. Its settings
            are further arguments: tau=0.2.
        keep: tokens per image or video (64) or a ratio (0.1); in place of it per_tile, per_frame, layer_average.
        dual_encoder: the CLIP or SigLIP that the model was built on, for relevance; auto: the one known to be.
        batch_size: samples asked at once, sorted by length.
        device, device_map, dtype: where the weights go, and as what: dtype=bfloat16.
        frames: shown of each video.
        resolution: the side of the square that images are resized to before the processor gets them.
        cuda_graphs: true, or compile.
        answers: a file name; answers are written there one by one, and what is there is not asked again.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str = "pocket",
        method: str = "none",
        *,
        dual_encoder: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        device_map: str | None = None,
        dtype: str = "auto",
        frames: int = 16,
        resolution: int | None = None,
        cuda_graphs: bool | str = False,
        answers: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        place, chosen = self._place(device), method_of(method, settings)
        loaded = load_model(pretrained, dual_encoder, place, dtype=dtype, device_map=device_map)
        shown: dict[str, Any] = {"frames": frames, "resolution": resolution, "cuda_graphs": cuda_graphs}
        file = AnswerFile(answers, self.rank) if answers is not None else None
        answerer = Answerer(loaded, chosen, **shown)
        self.answering = Answering(answerer, self.task_dict, int(batch_size), file)

    def _place(self, device: str | None) -> str:
        """The device of this process: one of several that `accelerate launch` started, or the one that was named."""
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:
            return device or "auto"
        from accelerate import Accelerator

        self.accelerator = Accelerator()
        self._rank, self._world_size = self.accelerator.process_index, self.accelerator.num_processes
        return str(self.accelerator.device)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> PrunedChat:
        """Make the model; where an option is among --model_args and beside them, the former counts."""
        beside = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**{**beside, **simple_parse_args_string(arg_string)})

    @property
    def device(self) -> Any:
        """Where the model's inputs go."""
        return self.answering.answerer.model.device

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """The answers to the requests."""
        return self._run(requests, self.answering.generate)

    def loglikelihood(self, requests: Sequence[Any]) -> list[Any]:
        """The loss of each continuation, and whether greedy decoding says it.

        It is the log-probability with its sign turned: lmms-eval takes the choice with the least. In a
        `GenerationResult`, for its evaluator makes text of a bare pair.
        """
        found = self._run(requests, self.answering.loglikelihood)
        return [GenerationResult(text=(-total, greedy)) for total, greedy in found]

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        """Not there: tasks of several rounds that build on each other."""
        raise NotImplementedError("--model vlprune runs tasks of one round; this one has several.")

    def _run(self, requests: Sequence[Any], answer: Any) -> Any:
        """The answers to all requests, with a progress bar; says at the end what was skipped."""
        told = len(self.answering.skipped)
        bar = tqdm(total=len(requests), desc="vlprune", disable=self.rank != 0)
        self.answering.tick = bar.update
        with bar:
            found = answer([Request.of(instance, simple=self.is_simple) for instance in requests])
        skipped = self.answering.skipped[told:]
        if skipped:
            first = skipped[0]
            print(
                f"vlprune: {len(skipped)} of {len(requests)} samples could not be asked, and count as answered by "
                f"nothing; the first is {first.key.rpartition('/')[0]} ({first.reason})",
                flush=True,
            )
        return found


class PrunedSimple(PrunedChat):
    """The same for tasks that compare likelihoods, which lmms-eval runs with `--force_simple`."""

    is_simple = True

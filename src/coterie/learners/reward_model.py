"""The reward model: a sequence-classification model of transformers with one label, on the local learner's layout.

What is saved loads as `AutoModelForSequenceClassification`. There the score is read at the last token that is not
padding; so is it here, since the data mark that token as the sequence's one action token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from coterie.config.schema import LocalLearnerConfig
from coterie.core.batch import Batch, Outputs
from coterie.errors import ConfigError, ModelError
from coterie.learners.local import LocalLearner
from coterie.learners.logprobs import Forward, plan_of
from coterie.learners.models import load_model
from coterie.learners.packing import Layout, Plan

SCORE = "score"
HEAD = "score.weight"
"""The tensor that a language model's folder lacks."""

_TOLERANCE = 1e-3


class ScoreForward(Forward):
    """A classification model as a function from (micro-)batches to `Outputs.extra["score"]`.

    Entry t is read at action token t itself. `Outputs.logprobs` are NaN: a reward model has none.

    Raises:
        ModelError: when the model's own score is something else.
    """

    known: ClassVar[frozenset[str]] = frozenset({SCORE})

    def outputs(self, batch: Batch, layout: Layout, wants: frozenset[str] = frozenset()) -> Outputs:
        """Scores for one micro-batch (on the device), with gradient unless under `torch.no_grad`."""
        position = batch.action_index - batch.cu_seqlens[batch.sequence_id]
        read = layout.flat(batch.sequence_id.cpu(), position.cpu()).to(self.device)
        found = self._score(self._hidden(layout).flatten(0, 1).index_select(0, read))
        return Outputs(torch.full_like(found, torch.nan), extra={SCORE: found})

    def score(self, batch: Batch, wants: frozenset[str] = frozenset()) -> Outputs:
        """Scores for a whole batch (on the host) without gradient, on the host, in the batch's order."""
        found = torch.empty(batch.num_actions)
        numbered = batch.with_streams({"order": torch.arange(batch.num_actions)})
        with torch.no_grad(), self.running():
            for part, layout in self.micro_batches(numbered):
                given = self.outputs(part.to(self.device), layout)
                found[part.streams["order"]] = given.extra[SCORE].float().cpu()
        return Outputs(torch.full_like(found, torch.nan), extra={SCORE: found})

    def _score(self, hidden: Float[Tensor, "A H"]) -> Float[Tensor, "A"]:
        head = _head(self.module)
        found: Tensor = head(hidden.to(head.weight.dtype))[:, 0]
        return found

    def _plan(self, batch: Batch) -> Plan:
        return plan_of(batch, self.config.share_prefix, own=True)

    def _check_outputs(self) -> None:
        """Compare with the model's own score of a few tokens, the last of which is no padding."""
        vocabulary, pad = self.module.config.get_text_config().vocab_size, self.module.config.pad_token_id
        ids = [i for i in range(min(vocabulary, 9)) if i != pad]
        row = torch.tensor([ids], device=self.device)
        with torch.no_grad():
            own = self.module(input_ids=row, use_cache=False).logits[0, 0]
            ours = self._score(self._body(input_ids=row, use_cache=False)[0][0, -1:])[0]
        if not float((own - ours).abs()) <= _TOLERANCE * max(1.0, float(own.abs())):
            raise ModelError(
                f"{type(self.module).__name__} scores a sequence in a way coterie doesn't know ({float(own):.4g}, not "
                f"{float(ours):.4g} as by its layer `score` at the last token); use another architecture"
            )


class LocalRewardModel(LocalLearner):
    """Trains a reward model on flat batches of `data.preference.scored_group`; otherwise as `LocalLearner`."""

    stage: ClassVar[str] = "reward_model"

    async def score(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """`{"score": float[A]}` without gradient.

        Raises:
            ConfigError: for another name.
        """
        if unknown := sorted(set(names) - self.forward.known):
            raise ConfigError(f"a reward model can't score {', '.join(unknown)}; it knows {SCORE}")
        return {SCORE: self.forward.score(batch.to("cpu")).extra[SCORE]}

    def _forward_of(self, module: PreTrainedModel, config: LocalLearnerConfig) -> Forward:
        return ScoreForward(module, config, self.shape, dtype=self.dtype, device=self.device)


def load_reward_model(
    name: str, *, pad_token_id: int, kwargs: Mapping[str, Any] | None = None, device: torch.device | str = "cpu"
) -> PreTrainedModel:
    """A classification model with one label: a reward model's folder, or a language model's body with a new head.

    Args:
        name: a folder in Hugging Face's layout, or a hub id.
        pad_token_id: what batches are padded with; kept in its configuration.
        kwargs: passed on to `from_pretrained`.
        device: where its weights are put.

    Raises:
        ModelError: for a model that can't be loaded, or an architecture without such a class in transformers.
    """
    options = {**(kwargs or {}), "num_labels": 1}
    module = load_model(name, kwargs=options, device=device, auto=AutoModelForSequenceClassification, fresh=(HEAD,))
    _head(module)
    module.config.get_text_config().pad_token_id = module.config.pad_token_id = pad_token_id
    return module


def _head(module: PreTrainedModel) -> nn.Linear:
    """The layer that makes the score.

    Raises:
        ModelError: when there is none of that name with one output.
    """
    head = getattr(module, SCORE, None)
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise ModelError(
            f"{type(module).__name__} has no linear layer `score` with one output; use a decoder architecture, like "
            "Llama or Qwen3"
        )
    return head

"""The critic: a model of its own with a value head, on the local learner's layout, micro-batches and optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from coterie.algos.critic import explained_variance
from coterie.config.schema import LocalLearnerConfig, OptimConfig
from coterie.core.batch import Batch, Outputs
from coterie.core.metrics import Metrics, Stat, gauge, values
from coterie.core.protocols import Learner
from coterie.core.types import Group, Rollout
from coterie.errors import ConfigError, ModelError, RunDirectoryError
from coterie.learners.local import LocalLearner
from coterie.learners.logprobs import Forward
from coterie.learners.models import load_model, load_tokenizer
from coterie.learners.packing import Layout

HEAD = "value_head.safetensors"
"""File beside a critic's body that holds the value head."""


class ValueForward(Forward):
    """A model's body and a value head as a function from (micro-)batches to `Outputs.values`.

    Entry t is V(s_t), the value before action token t: read where its logprob would be, at the position before it.
    `Outputs.logprobs` are NaN: a critic has none.

    Args:
        head: [1, H] linear layer; works in its own precision, which is that of the weights.
    """

    known: ClassVar[frozenset[str]] = frozenset({"values"})

    def __init__(self, head: nn.Linear, *args: Any, **kwargs: Any) -> None:
        self.head = head
        super().__init__(*args, **kwargs)

    def outputs(self, batch: Batch, layout: Layout, wants: frozenset[str] = frozenset()) -> Outputs:
        """Values for one micro-batch (on the device), with gradient unless under `torch.no_grad`."""
        hidden = self._predicting(batch, layout)
        found: Tensor = self.head(hidden.to(self.head.weight.dtype))[:, 0]
        return Outputs(torch.full_like(found, torch.nan), values=found)

    def _check_outputs(self) -> None:
        """A value head is what it is; there are no logits to compare."""


class LocalCritic(LocalLearner):
    """Trains a value model on flat batches; implements `core.protocols.Learner` (nobody samples what it publishes).

    Args:
        module: body without output layer, moved to `device` in place.
        head: its value head.
        tokenizer: saved beside the weights; None saves none.
        config: the `learner` section.
        optim: the `optim` section with the critic's learning rate.
        device: where to compute.
        total_steps: optimizer steps of the run, the end of the learning-rate schedule.

    Raises:
        ConfigError: for a dtype that the device can't do, or `share_prefix` where it can't be exact.
    """

    stage: ClassVar[str] = "critic"

    def __init__(
        self,
        module: PreTrainedModel,
        head: nn.Linear,
        tokenizer: Any,
        config: LocalLearnerConfig,
        optim: OptimConfig,
        *,
        device: torch.device,
        total_steps: int,
    ) -> None:
        self.head = head.to(device)
        super().__init__(module, tokenizer, config, optim, device=device, total_steps=total_steps)

    async def step(self) -> dict[str, Stat]:
        """As the policy's step; its metrics are `critic/lr`, `critic/grad_norm`, …"""
        metrics = await super().step()
        return {name.replace("optim/", f"{self.stage}/"): stat for name, stat in metrics.items()}

    async def score(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """`{"values": float[A]}` without gradient: V(s_t) before each action token.

        Raises:
            ConfigError: for another name.
        """
        unknown = sorted(set(names) - self.forward.known)
        if unknown:
            raise ConfigError(f"the critic can't score {', '.join(unknown)}; it knows values")
        found = self.forward.score(batch.to("cpu"), frozenset(names)).values
        return {} if found is None else {"values": found}

    def save(self, folder: Path) -> None:
        """Write `folder/model` (the body as a plain Hugging Face folder, and the value head) and `folder/state`."""
        super().save(folder)
        _write_head(self.head, folder / "model")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, in place.

        Raises:
            RunDirectoryError: when the checkpoint is damaged or belongs to another model.
        """
        super().load(folder)
        try:
            _read_head(self.head, folder / "model")
        except ModelError as error:
            raise RunDirectoryError(f"{error}; remove the checkpoint and resume from an older one") from error

    def _trained(self) -> nn.Module:
        return nn.ModuleList([self.module, self.head])

    def _forward_of(self, module: PreTrainedModel, config: LocalLearnerConfig) -> Forward:
        return ValueForward(self.head, module, config, self.shape, dtype=self.dtype, device=self.device)


def load_value_model(
    name: str, *, kwargs: Mapping[str, Any] | None = None, device: torch.device | str = "cpu"
) -> tuple[PreTrainedModel, nn.Linear]:
    """The body of model `name` and a value head: the folder's own where it is a critic's, else weights and bias 0.

    Raises:
        ModelError: for a model that can't be loaded, or a value head of another width.
    """
    module = load_model(name, kwargs=kwargs, device=device, auto=AutoModel).get_decoder()
    head = nn.Linear(module.config.get_text_config().hidden_size, 1, device=device)
    if (Path(name).expanduser() / HEAD).is_file():
        _read_head(head, Path(name).expanduser())
    else:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    return module, head


def check_same_tokens(name: str, tokenizer: Any) -> None:
    """Refuse a critic that reads the policy's token ids as other words.

    Raises:
        ModelError: when its tokenizer is missing or has another vocabulary.
    """
    if load_tokenizer(name).get_vocab() != tokenizer.get_vocab():
        raise ModelError(
            f"critic.model={name} has another vocabulary than the policy, whose token ids it would have to read; "
            "choose a model of the same family, or leave critic.model empty"
        )


async def add_values(critic: Learner, groups: Sequence[Group], *, bootstrap: bool) -> list[Group]:
    """Groups with stream `values`, and with `bootstrap_value` for rollouts that the length limit cut off.

    That value is read after the last token, where the value of one more action would be.
    """
    longer = [g.with_rollouts(_with_one_more(r) if bootstrap else r for r in g.rollouts) for g in groups]
    found = (await critic.score(Batch.from_groups(longer), ["values"]))["values"].cpu().numpy().astype(np.float64)
    lengths = [r.num_actions for g in longer for r in g.rollouts]
    pieces = iter(np.split(found, np.cumsum(lengths)[:-1]))
    return [g.with_rollouts(_valued(r, next(pieces)) for r in g.rollouts) for g in groups]


def with_explained_variance(metrics: Metrics) -> dict[str, Stat]:
    """Metrics of all updates of a training step, with what follows from those of the critic."""
    out = dict(metrics)
    if "critic/error_square_mean" in out:
        share = explained_variance(values(out))
        if np.isfinite(share):
            out["critic/explained_variance"] = gauge(share)
    return out


def _with_one_more(rollout: Rollout) -> Rollout:
    if not (rollout.truncated and rollout.num_actions):
        return rollout
    end = len(rollout.tokens)  # the token put there is never read: its value is read at the position before it
    return replace(
        rollout,
        tokens=np.append(rollout.tokens, 0),
        action_index=np.append(rollout.action_index, end),
        streams={},
        spans={},
        advantages=None,
    )


def _valued(rollout: Rollout, found: np.ndarray) -> Rollout:
    count = rollout.num_actions
    after = float(found[count]) if len(found) > count else 0.0
    return replace(rollout.with_streams(values=found[:count]), bootstrap_value=after)


def _write_head(head: nn.Linear, folder: Path) -> None:
    save_file({name: tensor.detach().cpu() for name, tensor in head.state_dict().items()}, folder / HEAD)


def _read_head(head: nn.Linear, folder: Path) -> None:
    try:
        head.load_state_dict(load_file(folder / HEAD))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder / HEAD} is no value head of this model: {error}") from error

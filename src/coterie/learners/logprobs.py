"""From a batch of whole sequences to log-probabilities of its action tokens.

This file is the only place of the shift by one: the token at position p is predicted by the hidden state at p - 1.
Everywhere else index t describes token t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from coterie.config.schema import LocalLearnerConfig
from coterie.core.batch import Batch, Outputs
from coterie.errors import ConfigError, ModelError
from coterie.learners.attention import PACKED, Blocks, register
from coterie.learners.head import LogitMap, action_logprobs, head_of
from coterie.learners.packing import Layout, Plan, Shape, lay_out, split, split_groups
from coterie.learners.prefix import check_sharing, packing_obstacle, shared_prefixes

EXTRA_OUTPUTS = frozenset({"entropy", "sum_probs_squared"})
"""Outputs besides logprobs that a loss may want."""

_PROBE_TOLERANCE = 1e-3  # nats, fp32: models that agree differ by about 1e-5


class Forward:
    """One causal LM as a function from (micro-)batches to `Outputs`; used for the policy and for the reference.

    Dropout is inactive always: ratios between two forward passes of the same weights must be 1. So the module stays
    in eval mode; gradients flow all the same.

    Args:
        module: causal LM of transformers, already on `device`, fp32 (or fp64) weights.
        config: layout, attention and checkpointing options.
        shape: micro-batch and chunk sizes.
        dtype: dtype of the body's forward pass (autocast when it isn't the weights' own).
        device: where the module is.
        temperature: divides the logits.

    Raises:
        ModelError: when the model's logits are not a linear function of its body's output that is understood here.
        ConfigError: when `share_prefix` can't be exact for this model.

    Attributes:
        known: outputs besides logprobs that a loss may want.
    """

    known: ClassVar[frozenset[str]] = EXTRA_OUTPUTS

    def __init__(
        self,
        module: PreTrainedModel,
        config: LocalLearnerConfig,
        shape: Shape,
        *,
        dtype: torch.dtype,
        device: torch.device,
        temperature: float = 1.0,
    ) -> None:
        self.module, self.config, self.shape = module, config, shape
        self.dtype, self.device = dtype, device
        self.logits = LogitMap.of(module.config, temperature)
        module.eval()
        self._body: Callable[..., Any] = module.get_decoder()
        register()
        self._check_outputs()
        self.obstacle = packing_obstacle(module, config) or self._packing_mismatch()
        check_sharing(self.obstacle, config)
        self.packed = self.obstacle is None
        if config.compile:
            self._body = torch.compile(self._body, dynamic=True)

    def micro_batches(self, batch: Batch, whole_groups: bool = False) -> list[tuple[Batch, Layout]]:
        """`batch` (on the host) split by the token budget, each part with its layout; deterministic.

        With `whole_groups` no group is split, even where it alone passes the budget.
        """
        plan, budget = self._plan(batch), self.shape.micro_batch_tokens
        if whole_groups:
            parts = split_groups(plan, batch.group_id.tolist(), budget, self.packed)
        else:
            parts = split(plan, budget, self.packed)
        return [(batch.select(part), lay_out(plan, part, self.packed)) for part in parts]

    def outputs(self, batch: Batch, layout: Layout, wants: frozenset[str] = frozenset()) -> Outputs:
        """Outputs for one micro-batch (on the device), with gradient unless under `torch.no_grad`."""
        weight, bias = head_of(self.module)
        head = action_logprobs(
            self._predicting(batch, layout),
            weight,
            bias,
            batch.tokens[batch.action_index],
            logits=self.logits,
            chunk=self.shape.head_chunk,
            wants=wants & EXTRA_OUTPUTS,
        )
        extra = {} if head.sum_probs_squared is None else {"sum_probs_squared": head.sum_probs_squared}
        return Outputs(head.logprobs, head.entropy, None, extra)

    def score(self, batch: Batch, wants: frozenset[str] = frozenset()) -> Outputs:
        """Outputs for a whole batch (on the host) without gradient, on the host, in the batch's order."""
        names = ["logprobs", *sorted(wants & self.known)]
        found = {name: torch.empty(batch.num_actions) for name in names}
        numbered = batch.with_streams({_ORDER: torch.arange(batch.num_actions)})
        with torch.no_grad(), self.running():
            for part, layout in self.micro_batches(numbered):
                outputs = self.outputs(part.to(self.device), layout, wants)
                given = {**vars(outputs), **outputs.extra}
                for name in names:
                    found[name][part.streams[_ORDER]] = given[name].float().cpu()
        extra = {"sum_probs_squared": found["sum_probs_squared"]} if "sum_probs_squared" in found else {}
        return Outputs(found["logprobs"], found.get("entropy"), found.get("values"), extra)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Forward and backward passes happen inside: attention and checkpointing are the learner's, and are the
        engine's again afterwards."""
        with attention_of(self.module, PACKED if self.packed else None), _checkpointing(self.module, self.config):
            yield

    def _plan(self, batch: Batch) -> Plan:
        return plan_of(batch, self.config.share_prefix)

    def _check_outputs(self) -> None:
        check_head(self.module, self._body)

    def _predicting(self, batch: Batch, layout: Layout) -> Float[Tensor, "A H"]:
        """The hidden state that predicts each action token: the one at the position before it."""
        hidden = self._hidden(layout)
        position = batch.action_index - batch.cu_seqlens[batch.sequence_id]
        read = layout.flat(batch.sequence_id.cpu(), position.cpu() - 1).to(self.device)
        return hidden.flatten(0, 1).index_select(0, read)

    def _hidden(self, layout: Layout) -> Float[Tensor, "rows length H"]:
        mixed = self.dtype != next(self.module.parameters()).dtype
        hidden = run_body(self._body, layout.map(lambda tensor: tensor.to(self.device)), self.dtype if mixed else None)
        return hidden.to(self.dtype) if mixed else hidden

    def _packing_mismatch(self) -> str | None:
        """Try a packed row with a shared prefix on a few tokens; what speaks against it, or None."""
        first, second = _probe_ids(self.module)
        ids = torch.cat([first, second[3:], first[3:5]])[None]
        positions = torch.cat([torch.arange(8), torch.arange(3, 8), torch.arange(3, 5)])[None].to(ids.device)
        blocks = Blocks.of([(0, 0, [(0, 3)]), (0, 3, [(3, 5), (8, 5), (13, 2)])])
        try:
            with torch.no_grad(), attention_of(self.module, PACKED):
                packed = self._body(
                    input_ids=ids,
                    position_ids=positions,
                    use_cache=False,
                    packed_blocks=blocks.map(lambda tensor: tensor.to(ids.device)),
                )[0][0]
        except (ModelError, TypeError) as error:
            return str(error)
        with torch.no_grad():
            plain = self._body(input_ids=torch.stack([first, torch.cat([first[:3], second[3:]])]), use_cache=False)[0]
        want = torch.cat([plain[0], plain[1, 3:], plain[0, 3:5]])
        worst = float((packed - want).abs().max() / want.abs().max().clamp(min=1e-6))
        if worst < _PROBE_TOLERANCE:
            return None
        return f"{type(self.module).__name__} computes something else on a packed row (relative difference {worst:.1e})"


def run_body(
    body: Callable[..., Any], layout: Layout, autocast: torch.dtype | None = None
) -> Float[Tensor, "rows length H"]:
    """Last hidden states of a model's body on a layout, on the layout's device."""
    kwargs: dict[str, Any] = {}
    if layout.blocks is not None:
        kwargs["packed_blocks"] = layout.blocks
    if layout.position_ids is not None:
        kwargs["position_ids"] = layout.position_ids
    device = layout.input_ids.device.type
    with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
        hidden: Tensor = body(input_ids=layout.input_ids, use_cache=False, **kwargs)[0]
    return hidden


def plan_of(batch: Batch, share: bool, *, own: bool = False) -> Plan:
    """What has to be computed for the action tokens of `batch` (on the host).

    With `own` the hidden state of each action token itself is read, not the one that predicts it.

    Raises:
        ValueError: for an action token at the first position of its sequence: nothing predicts it.
    """
    starts = batch.cu_seqlens[:-1]
    position = batch.action_index - starts[batch.sequence_id] + int(own)
    if int(position.min()) < 1:
        where = int(batch.sequence_id[position.argmin()])
        raise ValueError(f"sequence {where} has an action token at position 0, which no context predicts")
    needed = torch.zeros(batch.num_sequences, dtype=torch.int64)
    needed = needed.scatter_reduce(0, batch.sequence_id, position, "amax")  # last predicting position, plus one
    counts = tuple(needed.tolist())
    shared, prefix = shared_prefixes(batch, counts, share)
    return Plan(batch.tokens, tuple(starts.tolist()), counts, shared, prefix)


def check_wants(wants: frozenset[str], known: frozenset[str] = EXTRA_OUTPUTS) -> None:
    """Refuse outputs that a model doesn't give; a policy by default.

    Raises:
        ConfigError: naming the output and those that exist.
    """
    unknown = sorted(wants - known)
    if unknown:
        raise ConfigError(
            f"the loss wants {', '.join(unknown)}, which the local learner doesn't compute; it knows "
            f"{', '.join(sorted(known))}"
        )


def check_head(module: PreTrainedModel, body: Callable[..., Any]) -> None:
    """Compare this file's logits with the model's own on a few tokens.

    Raises:
        ModelError: when the model does something to its logits that `LogitMap` doesn't know.
    """
    weight, bias = head_of(module)
    first, _ = _probe_ids(module)
    with torch.no_grad():
        own = module(input_ids=first[None], use_cache=False).logits[0]
        hidden = body(input_ids=first[None], use_cache=False)[0][0]
        targets = own.argmax(1)
        ours = action_logprobs(hidden, weight, bias, targets, logits=LogitMap.of(module.config), chunk=len(first))
        want = own.to(ours.logprobs.dtype).log_softmax(1).gather(1, targets[:, None])[:, 0]
    worst = float((ours.logprobs - want).abs().max())
    if not worst < _PROBE_TOLERANCE:
        raise ModelError(
            f"{type(module).__name__} turns hidden states into logits in a way coterie doesn't know: logprobs differ "
            f"by {worst:.2g} on a probe. Known are a linear head with bias, logit_scale, logits_scaling, "
            "lm_head_multiplier and final_logit_softcapping"
        )


_ORDER = "learner/order"


def _probe_ids(module: PreTrainedModel) -> Sequence[Tensor]:
    """Two sequences of 8 ids, spread over the vocabulary."""
    device = next(module.parameters()).device
    ids = (torch.arange(16, device=device) * 7919 + 11) % module.config.get_text_config().vocab_size
    return ids[:8], ids[8:]


@contextmanager
def attention_of(module: PreTrainedModel, name: str | None) -> Iterator[None]:
    """Another attention implementation for a while; None leaves it as it is."""
    if name is None:
        yield
        return
    config = module.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation_internal = name
    try:
        yield
    finally:
        config._attn_implementation_internal = before


@contextmanager
def _checkpointing(module: PreTrainedModel, config: LocalLearnerConfig) -> Iterator[None]:
    """transformers checkpoints a layer when the layer itself is in training mode; what is inside it stays in eval."""
    layers = [layer for layer in module.modules() if getattr(layer, "gradient_checkpointing", False)]
    on = config.gradient_checkpointing and torch.is_grad_enabled()
    for layer in layers:
        layer.training = on
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False

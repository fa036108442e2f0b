"""`learner=local`: weights, gradients and optimizer in this process, on one device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from coterie.config.schema import LocalLearnerConfig, OptimConfig
from coterie.core.batch import Batch
from coterie.core.metrics import Metrics, Stat, gauge, mean, merge, total
from coterie.core.protocols import HasPrepass, LossFn, WeightsRef
from coterie.errors import ConfigError, ModelError, RunDirectoryError
from coterie.learners.allocator import keep_freed_memory
from coterie.learners.logprobs import Forward, check_wants
from coterie.learners.models import check_folder, quiet_progress
from coterie.learners.optim import Optimizer
from coterie.learners.packing import Shape, choose_shape

_log = logging.getLogger(__name__)

_STREAMS = ("old_logprobs", "ref_logprobs")
_STATE_FILE = "learner.pt"


class LocalLearner:
    """Trains a causal LM on flat batches; implements `core.protocols.Learner`.

    Weights and optimizer state are fp32 (weights in half precision are converted in place); `config.dtype` is the
    dtype of the forward pass. The module stays in eval mode: dropout is off in training as in sampling, so that ratios
    of one and the same policy are 1.

    Args:
        module: causal LM of transformers; moved to `device` in place and shared with the embedded engine.
        tokenizer: saved beside the weights; None saves none.
        config: the `learner` section.
        optim: the `optim` section.
        device: where to compute.
        total_steps: optimizer steps of the run, the end of the learning-rate schedule.
        temperature: divides the logits, as it did in sampling.
        load_reference: makes the frozen reference model; called once, when "ref_logprobs" is first asked for.

    Raises:
        ConfigError: for a dtype that the device can't do, or `share_prefix` where it can't be exact.
        ModelError: for a model whose logits are not understood.

    Attributes:
        stage: stage of the metric that holds the loss.
    """

    stage: ClassVar[str] = "policy"

    def __init__(
        self,
        module: PreTrainedModel,
        tokenizer: Any,
        config: LocalLearnerConfig,
        optim: OptimConfig,
        *,
        device: torch.device,
        total_steps: int,
        temperature: float = 1.0,
        load_reference: Callable[[], PreTrainedModel] | None = None,
    ) -> None:
        if temperature <= 0:
            raise ConfigError(f"the learner's temperature is {temperature}; it divides the logits and must be above 0")
        self.dtype = compute_dtype(config, device)
        self.module, self.tokenizer, self.config, self.device = module, tokenizer, config, device
        self.temperature = temperature
        self.version = 0
        self._load_reference = load_reference
        self._reference: Forward | None = None
        if device.type == "cpu":
            keep_freed_memory()
        _prepare(module, config, device)
        if config.gradient_checkpointing:
            _enable_checkpointing(module)
        self.shape: Shape = choose_shape(module.config, config, gpu_memory(device))
        self.forward = self._forward_of(module, config)
        self.optimizer = Optimizer(self._trained(), optim, total_steps, loss_scaling=self.dtype == torch.float16)
        _log.info(
            "local learner: %s positions a micro-batch, logits of %s positions at a time, %s",
            self.shape.micro_batch_tokens,
            self.shape.head_chunk,
            "packed rows" if self.forward.packed else f"padded rows ({self.forward.obstacle})",
        )

    async def forward_backward(self, batch: Batch, loss: LossFn) -> dict[str, Stat]:
        """Accumulate the gradient of `loss` over `batch`, split into micro-batches of whole sequences (or groups).

        The loss divides by `batch.counts`, so micro-batch losses and gradients add up to those of the whole batch.

        Raises:
            ConfigError: when the loss needs a stream that the batch lacks, or wants an output that doesn't exist here.
        """
        check_needs(loss, batch)
        check_wants(loss.wants, self.forward.known)
        started = time.perf_counter()
        batch = batch.to("cpu")
        if isinstance(loss, HasPrepass):
            streams, scalars = loss.prepass(self.forward.score(batch, loss.wants), batch)
            batch = batch.with_streams(streams, scalars)
        collected: list[Metrics] = []
        value = 0.0
        real = positions = 0
        with self.forward.running():
            for part, layout in self.forward.micro_batches(batch, getattr(loss, "whole_groups", False)):
                part = part.to(self.device)
                result = loss(self.forward.outputs(part, layout, loss.wants), part)
                if result.loss.requires_grad:
                    self.optimizer.backward(result.loss)
                value += float(result.loss.detach())
                collected.append(result.metrics)
                real += layout.real
                positions += layout.input_ids.numel()
        seconds = time.perf_counter() - started
        return {
            **merge(collected),
            f"{self.stage}/loss": gauge(value),
            "time/forward_backward_s": total(seconds),
            "throughput/train_tokens_per_s": mean(int(batch.lengths.sum()), seconds),
            "throughput/computed_positions_per_s": mean(positions, seconds),
            "throughput/padding_share": mean(positions - real, positions),
        }

    async def step(self) -> dict[str, Stat]:
        """Clip, update, advance the schedule, zero the gradient; a non-finite gradient skips the update."""
        started = time.perf_counter()
        changed, metrics = self.optimizer.step()
        self.version += changed
        return {**metrics, "time/optimizer_s": total(time.perf_counter() - started)}

    async def score(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """Streams of `batch` without gradient: "old_logprobs" (these weights) and "ref_logprobs" (the reference).

        Raises:
            ConfigError: for another name, or for "ref_logprobs" when there is no reference.
        """
        unknown = sorted(set(names) - set(_STREAMS))
        if unknown:
            raise ConfigError(f"the local learner can't score {', '.join(unknown)}; it knows {', '.join(_STREAMS)}")
        batch = batch.to("cpu")
        sources = {"old_logprobs": lambda: self.forward, "ref_logprobs": self._reference_forward}
        return {name: sources[name]().score(batch).logprobs for name in names}

    async def publish(self) -> WeightsRef:
        """The version of the weights; an embedded engine shares the module, so there is nothing to copy."""
        return WeightsRef(self.version)

    def save(self, folder: Path) -> None:
        """Write `folder/model` (a plain Hugging Face folder, fp32 weights) and `folder/state`.

        A learner that loads it goes on bit for bit.
        """
        model, state = folder / "model", folder / "state"
        with quiet_progress():
            self.module.save_pretrained(model)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(model)
        state.mkdir()
        rng = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        torch.save({"version": self.version, "optimizer": self.optimizer.state_dict(), "rng": rng}, state / _STATE_FILE)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote: weights in place (the engine sees them), optimizer, schedule and random state.

        Raises:
            RunDirectoryError: when the checkpoint is damaged or belongs to another model.
        """
        try:
            state = torch.load(folder / "state" / _STATE_FILE, map_location="cpu", weights_only=True)
            stored = self._stored(folder / "model")
            with torch.no_grad():
                weights = dict(stored.named_parameters()) | dict(stored.named_buffers())
                for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
                    tensor.copy_(weights[name])
            self.optimizer.load_state_dict(state["optimizer"])
        except (
            OSError,
            KeyError,
            ValueError,
            RuntimeError,
            EOFError,
            UnpicklingError,
            SafetensorError,
            ModelError,
        ) as error:
            raise RunDirectoryError(
                f"{folder}: the checkpoint can't be read ({type(error).__name__}: {error}); "
                "remove it and resume from an older one"
            ) from error
        self.version = int(state["version"])
        torch.set_rng_state(state["rng"]["cpu"])
        if "cuda" in state["rng"] and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["rng"]["cuda"], self.device)

    def _stored(self, folder: Path) -> PreTrainedModel:
        """The model in `folder`, on the host, in the dtype of the module."""
        check_folder(folder)
        dtype = next(self.module.parameters()).dtype
        with quiet_progress():
            return type(self.module).from_pretrained(folder, dtype=dtype)

    def release_reference(self) -> None:
        """Free the reference model; it is loaded again when "ref_logprobs" are asked for."""
        self._reference = None

    def _reference_forward(self) -> Forward:
        if self._reference is None:
            if self._load_reference is None:
                raise ConfigError(
                    "ref_logprobs are needed but there is no reference model; set learner.ref_model or choose a loss "
                    "and reward without a KL term"
                )
            module = self._load_reference()
            _prepare(module, self.config, self.device)
            module.requires_grad_(False)
            self._reference = self._forward_of(module, self.config)
        return self._reference

    def _trained(self) -> nn.Module:
        return self.module

    def _forward_of(self, module: PreTrainedModel, config: LocalLearnerConfig) -> Forward:
        return Forward(module, config, self.shape, dtype=self.dtype, device=self.device, temperature=self.temperature)


def compute_dtype(config: LocalLearnerConfig, device: torch.device) -> torch.dtype:
    """The forward pass's dtype.

    Raises:
        ConfigError: for float16 on a CPU.
    """
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if config.dtype == "float16" and device.type == "cpu":
        raise ConfigError(
            "learner.dtype=float16 on a CPU: processors compute it in emulation, slower and less exact than float32; "
            "set learner.dtype=float32"
        )
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[config.dtype]


def gpu_memory(device: torch.device) -> int | None:
    """Bytes that a GPU has in all; None for another device."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def check_needs(loss: LossFn, batch: Batch) -> None:
    """Refuse a batch that lacks a stream the loss reads.

    Raises:
        ConfigError: naming the stream and what is there.
    """
    missing = sorted(loss.needs - batch.streams.keys())
    if missing:
        raise ConfigError(
            f"{type(loss).__name__} needs the stream {', '.join(missing)}, which this batch lacks; it has "
            f"{', '.join(sorted(batch.streams)) or 'none'}. Score it before the update (learner.score) or choose a "
            "loss that does without"
        )


def _prepare(module: PreTrainedModel, config: LocalLearnerConfig, device: torch.device) -> None:
    """To the device, in fp32 where it is in half precision, with the attention asked for."""
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters())
    plain: nn.Module = module
    plain.to(device=device, dtype=torch.float32 if half else None)
    if config.attention != "auto":
        try:
            module.set_attn_implementation(config.attention)
        except (ValueError, ImportError, KeyError) as error:
            raise ConfigError(f"learner.attention={config.attention} can't be used here: {error}") from error


def _enable_checkpointing(module: PreTrainedModel) -> None:
    """Switch on transformers' gradient checkpointing.

    Raises:
        ConfigError: when the model doesn't support it, or has dropout, which checkpointed layers would switch on.
    """
    if not getattr(module, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"learner.gradient_checkpointing=true: {type(module).__name__} doesn't support it; set it to false"
        )
    values = module.config.to_dict()
    dropout = {key: value for key, value in values.items() if "drop" in key and isinstance(value, float) and value > 0}
    if dropout:
        raise ConfigError(
            f"learner.gradient_checkpointing=true would switch on the model's dropout ({dropout}); set these to 0 with "
            "model_kwargs, or learner.gradient_checkpointing=false"
        )
    module.gradient_checkpointing_enable({"use_reentrant": False})

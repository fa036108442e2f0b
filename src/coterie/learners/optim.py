"""AdamW, clipping and the learning-rate schedule of a local learner."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import nn

from coterie.config.schema import OptimConfig
from coterie.core.metrics import Stat, gauge, total

_log = logging.getLogger(__name__)


def learning_rate(step: int, total_steps: int, config: OptimConfig) -> float:
    """Learning rate of optimizer step `step` (from 0) of `total_steps`.

    Linear warm-up reaches `lr` at step `warmup_steps - 1`; the schedule then ends at `lr * min_lr_ratio` at step
    `total_steps - 1` and stays there.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    span = total_steps - 1 - config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / span) if span > 0 else 1.0
    left = 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * left)


class Optimizer:
    """AdamW over a module's parameters with a schedule; a step with a non-finite gradient is skipped and counted.

    The schedule counts attempted steps, so that it ends where it should however many were skipped.

    Args:
        module: its parameters that require a gradient are optimized; weight decay applies to matrices only.
        config: hyper-parameters.
        total_steps: optimizer steps of the whole run (the schedule's end).
        loss_scaling: scale the loss dynamically (fp16 gradients underflow otherwise).
    """

    def __init__(self, module: nn.Module, config: OptimConfig, total_steps: int, *, loss_scaling: bool = False) -> None:
        self.config, self.total_steps = config, total_steps
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        matrices = [p for p in self.parameters if p.ndim >= 2]
        others = [p for p in self.parameters if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=self.parameters[0].device.type in ("cpu", "cuda"),
        )
        self.scaler = torch.amp.GradScaler(self.parameters[0].device.type, enabled=loss_scaling)
        self.steps = 0
        self.skipped = 0

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of `loss` to what has accumulated."""
        self.scaler.scale(loss).backward()

    def step(self) -> tuple[bool, dict[str, Stat]]:
        """Clip, update, advance the schedule, zero the gradient: whether weights changed, and metrics."""
        rate = learning_rate(self.steps, self.total_steps, self.config)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.scaler.unscale_(self.adamw)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        size = float(norm)
        finite = math.isfinite(size)
        if finite:
            if 0 < self.config.max_grad_norm < size:
                torch.nn.utils.clip_grads_with_norm_(self.parameters, self.config.max_grad_norm, norm)
            self.adamw.step()
        else:
            self.skipped += 1
            _log.warning(
                "optimizer step %d skipped: the gradient norm is %s; %d skipped so far", self.steps, size, self.skipped
            )
        self.scaler.update()
        self.adamw.zero_grad(set_to_none=True)
        self.steps += 1
        metrics = {"optim/lr": gauge(rate), "optim/skipped_steps": total(0.0 if finite else 1.0)}
        if finite:
            metrics["optim/grad_norm"] = gauge(size)
            metrics["optim/clipped_share"] = gauge(float(0 < self.config.max_grad_norm < size))
        return finite, metrics

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs: tensors and plain numbers only."""
        return {
            "adamw": self.adamw.state_dict(),
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.adamw.load_state_dict(state["adamw"])
        self.scaler.load_state_dict(state["scaler"])
        self.steps, self.skipped = int(state["steps"]), int(state["skipped"])

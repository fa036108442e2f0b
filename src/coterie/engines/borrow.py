"""Using the learner's module for sampling without leaving a trace in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_SMALL = 262_144  # weights below this many numbers gain nothing from oneDNN: its calls cost more than they save


@contextmanager
def borrowed(module: nn.Module, attention: str | None, dtype: torch.dtype | None) -> Iterator[None]:
    """Evaluation mode, no gradient, `attention` as the attention implementation; all undone on leaving.

    Args:
        module: a transformers model; its weights are used in place.
        attention: name in transformers' table of attention implementations, or None to leave the model's own.
        dtype: dtype to compute in (autocast) where it differs from the parameters'; None for the parameters' own.
    """
    first = next(module.parameters())
    config: Any = module.config.get_text_config()  # type: ignore[operator, union-attr]
    training = [m for m in module.modules() if m.training]
    compiled = any(m._compiled_call_impl is not None for m in module.modules())
    own_attention = config._attn_implementation_internal
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if compiled:  # every new batch shape would compile again
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for m in training:
            m.training = False
        stack.callback(_set_training, training)
        if attention is not None:
            config._attn_implementation_internal = attention
            stack.callback(setattr, config, "_attn_implementation_internal", own_attention)
        if dtype is not None and dtype != first.dtype:
            stack.enter_context(torch.autocast(first.device.type, dtype=dtype))
        elif first.device.type == "cpu" and first.dtype == torch.float32 and _has_onednn():
            _borrow_linears(module, stack)
            _borrow_norms(module, stack)
        yield


def _set_training(modules: list[nn.Module]) -> None:
    for m in modules:
        m.training = True


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _borrow_linears(module: nn.Module, stack: ExitStack) -> None:
    """Let oneDNN compute the large linear layers: on few rows it is up to twice as fast as torch's own choice."""
    for m in module.modules():
        if type(m) is nn.Linear and m.weight.numel() >= _SMALL and "forward" not in m.__dict__:
            m.__dict__["forward"] = _onednn_linear(m.weight.detach(), None if m.bias is None else m.bias.detach())
            stack.callback(m.__dict__.pop, "forward")


def _onednn_linear(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    linear = torch.ops.mkldnn._linear_pointwise

    def forward(x: Tensor) -> Tensor:
        return linear(x, weight, bias, "none", [], "")

    return forward


def _borrow_norms(module: nn.Module, stack: ExitStack) -> None:
    """Let one call of torch compute what transformers' RMS norms compute in six: tiny models spend their time there."""
    known: dict[type, bool] = {}
    m: Any
    for m in module.modules():
        if not type(m).__name__.endswith("RMSNorm") or "forward" in m.__dict__:
            continue
        forward = _rms_norm(m)
        if forward is None:
            continue
        if type(m) not in known:  # a class may scale otherwise, by 1 + weight for example
            x = torch.linspace(-2, 3, m.weight.numel())
            known[type(m)] = torch.allclose(forward(x), m(x), rtol=1e-5, atol=1e-6)
        if known[type(m)]:
            m.__dict__["forward"] = forward
            stack.callback(m.__dict__.pop, "forward")


def _rms_norm(m: Any) -> Callable[[Tensor], Tensor] | None:
    """x · weight / sqrt(mean(x²) + eps) with the module's own numbers, if it has such."""
    names, eps = [name for name, _ in m.named_parameters()], getattr(m, "variance_epsilon", None)
    if names != ["weight"] or m.weight.ndim != 1 or not isinstance(eps, float):
        return None
    weight, shape = m.weight.detach(), m.weight.shape

    def forward(x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, shape, weight, eps)

    return forward

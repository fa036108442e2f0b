"""The slots: what a piece must offer to take part in the loop.

Everything that may wait on another process is a coroutine; the local runtime's coroutines run to the end without a
switch, so `breakpoint()` works in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from coterie.core.batch import Batch, Outputs
from coterie.core.metrics import Metrics
from coterie.core.types import Completion, Group, Request

S = TypeVar("S")


@dataclass(frozen=True)
class WeightsRef:
    """Where published weights are: a version, and a folder when they crossed a process border."""

    version: int
    path: Path | None = None


@runtime_checkable
class Engine(Protocol):
    """Samples completions. `generate` keeps the order of requests and of seeds in each."""

    async def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """One list of completions a request, one completion a seed."""
        ...

    async def load(self, weights: WeightsRef) -> None:
        """Take over published weights."""
        ...

    async def sleep(self) -> None:
        """Free what the engine can rebuild (caches)."""
        ...

    async def wake(self) -> None:
        """Undo `sleep`."""
        ...


@dataclass(frozen=True, eq=False)
class LossOutput:
    """A scalar to minimise, already divided by global denominators (micro-batch losses add up), and its metrics."""

    loss: Float[Tensor, ""]
    metrics: Metrics = field(default_factory=dict)


class LossFn(Protocol):
    """`(outputs, batch) -> LossOutput`, and what it needs.

    Attributes:
        needs: names of batch streams that must be there (`old_logprobs`, `ref_logprobs`, …).
        wants: optional outputs to compute with gradient ("entropy", "values").
    """

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def wants(self) -> frozenset[str]: ...

    def __call__(self, outputs: Outputs, batch: Batch) -> LossOutput: ...


@runtime_checkable
class HasPrepass(Protocol):
    """A loss that needs statistics of current logprobs over the whole batch (before any split, no gradient).

    The learner runs a no-grad forward over the mini-batch, calls `prepass` once, and puts the returned per-action-token
    streams and scalars into the batch; micro-batches then carry their part.
    """

    def prepass(self, outputs: Outputs, batch: Batch) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        """`(streams[A], scalars)` given the whole mini-batch's outputs."""
        ...


class Learner(Protocol):
    """Owns weights and optimizer."""

    async def forward_backward(self, batch: Batch, loss: LossFn) -> Metrics:
        """Accumulate the gradient of `loss` over `batch` (one optimizer step's worth, split as it sees fit)."""
        ...

    async def step(self) -> Metrics:
        """Clip, update, advance the schedule, zero the gradient."""
        ...

    async def score(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """Per-action-token streams without gradient, e.g. `("old_logprobs", "ref_logprobs")`."""
        ...

    async def publish(self) -> WeightsRef:
        """Make the current weights available to engines."""
        ...

    def save(self, folder: Path) -> None:
        """Write model and training state into an existing empty folder: `model/` and `state/`."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        ...


@dataclass(frozen=True)
class Context:
    """What a reward may use besides the group.

    Attributes:
        step: training step (or the step an evaluation belongs to).
        seed: the run's seed; combine it with coordinates through `core.keys`.
        split: "train" or "eval".
        resources: named things the runtime offers (engines, tokenizer), e.g. `context.resources["tokenizer"]`.
    """

    step: int = 0
    seed: int = 0
    split: str = "train"
    resources: Mapping[str, Any] = field(default_factory=dict)


class RewardFn(Protocol):
    """Scores a group: returns it with named scores added. Asynchronous, may call models."""

    async def __call__(self, group: Group, context: Context) -> Group: ...


class GroupFn(Protocol):
    """Pure stage `groups -> groups`: filters, advantages, transforms.

    Attributes:
        needs: names of scores and streams that must be there: "score:reward", "stream:values", "span:cot".
    """

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, groups: list[Group]) -> list[Group]: ...


class Coef(Protocol[S]):
    """A controlled coefficient (KL, entropy): state is plain data, kept in the checkpoint."""

    def init(self) -> S: ...

    def update(self, state: S, metrics: Mapping[str, float]) -> S: ...

    def value(self, state: S) -> float: ...


class Runtime(Protocol):
    """Makes the long-lived parts: `local` constructs them, `ray` places them."""

    def spawn(self, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """An object with coroutine methods."""
        ...

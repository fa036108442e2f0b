"""Plain-language notes when a run looks unhealthy: a metric outside its declared range, or a course that bodes ill."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping

from coterie.train.metric_specs import find

_WINDOW = 50


class Diagnosis:
    """Reads each step's metrics and says what a person should look at; the same thing once in `every` steps.

    Args:
        every: steps for which a note is not repeated.
    """

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self._said: dict[str, int] = {}
        self._first: dict[str, list[float]] = defaultdict(list)
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_WINDOW))

    def notes(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """What to say about this step; empty when there is nothing, or it was said lately."""
        found = [*_out_of_range(step, metrics), *self._courses(step, metrics)]
        for name, value in metrics.items():
            if math.isfinite(value):
                self._recent[name].append(value)
                if len(self._first[name]) < _WINDOW:
                    self._first[name].append(value)
        fresh = [(topic, text) for topic, text in found if step - self._said.get(topic, -self.every) >= self.every]
        self._said.update((topic, step) for topic, _ in fresh)
        return [text for _, text in fresh]

    def _courses(self, step: int, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """Notes that need the steps before."""
        entropy, first = metrics.get("policy/entropy"), self._first.get("policy/entropy", [])
        if entropy is not None and len(first) >= 10:
            start = statistics.fmean(first[:10])
            if start > 0 and entropy < 0.1 * start:
                yield (
                    "entropy collapse",
                    f"the policy's entropy fell from {start:.3g} to {entropy:.3g} nats: it samples nearly the same "
                    "answer each time, so groups stop differing. Try a higher loss.clip_high, an entropy bonus, a "
                    "higher rollout.temperature or a smaller optim.lr.",
                )
        norm, norms = metrics.get("optim/grad_norm"), self._recent.get("optim/grad_norm", ())
        if norm is not None and len(norms) >= 20:
            usual = statistics.median(norms)
            if usual > 0 and norm > 20 * usual:
                yield (
                    "gradient spike",
                    f"the gradient norm is {norm:.3g}, {norm / usual:.0f} times its recent median: one batch pulls "
                    "hard. If it comes back, lower optim.lr or optim.max_grad_norm.",
                )
        yield from self._evaluation(metrics)
        yield from self._standstill(step)

    def _evaluation(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        high, lows = metrics.get("eval/accuracy_ci95_high"), self._first.get("eval/accuracy_ci95_low")
        if high is not None and lows and high < lows[0]:
            yield (
                "evaluation worse",
                f"held-out accuracy is {metrics.get('eval/accuracy', math.nan):.1%}, its whole 95 % interval below "
                f"that of the first evaluation ({self._first['eval/accuracy'][0]:.1%}): training makes the model "
                "worse on these problems. Look at samples for a reward that is gamed, and lower optim.lr.",
            )

    def _standstill(self, step: int) -> Iterator[tuple[str, str]]:
        first, recent = self._first.get("reward/reward", []), self._recent.get("reward/reward", ())
        if step < 3 * _WINDOW or len(first) < _WINDOW or len(recent) < _WINDOW:
            return
        gain = statistics.fmean(recent) - statistics.fmean(first)
        error = math.sqrt((statistics.variance(recent) + statistics.variance(first)) / _WINDOW)
        if gain < 2 * error:
            yield (
                "standstill",
                f"the mean reward of the last {_WINDOW} steps ({statistics.fmean(recent):.3g}) is not above that of "
                f"the first {_WINDOW} ({statistics.fmean(first):.3g}, standard error {error:.2g}): nothing is being "
                "learned yet. Check group/zero_variance_frac and the samples; try a larger optim.lr or easier data.",
            )


def _out_of_range(step: int, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for name, value in metrics.items():
        if not math.isfinite(value):
            yield (
                f"{name} not finite",
                f"{name} is {value}: a number overflowed. Look at the rollouts of this step; lower optim.lr, or use "
                "learner.dtype=float32.",
            )
            continue
        spec = find(name)
        if spec is None or step <= spec.after_step or not spec.advice:
            continue
        if (spec.low is not None and value < spec.low) or (spec.high is not None and value > spec.high):
            yield name, spec.advice.format(value=value, name=name)

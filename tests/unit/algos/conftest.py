"""Groups for the tests of the host side: `make_group([1, 0, None], lengths=[3, 2, 2], ...)`."""

import numpy as np
import pytest

from coterie.core.types import Example, Group, Rollout, Score


def score(value):
    return value if isinstance(value, Score) else Score.missing("test") if value is None else Score(float(value))


def build(scores, lengths=None, *, example="e", streams=None, cot=None, finish=None, advantages=None, **more):
    """One rollout a score (None = missing), `lengths` action tokens after a prompt of two tokens.

    `more` holds further score lists by name; streams and advantages are lists of arrays, cot a list of (start, end).
    """
    lengths = lengths or [2] * len(scores)
    rollouts = []
    for i, (value, n) in enumerate(zip(scores, lengths, strict=True)):
        named = {"reward": score(value), **{name: score(values[i]) for name, values in more.items()}}
        rollouts.append(
            Rollout(
                tokens=np.arange(n + 2),
                action_index=np.arange(2, n + 2),
                text="",
                finish_reason=finish[i] if finish else "stop",
                index=i,
                scores=named,
                streams={name: np.asarray(rows[i], dtype=np.float64) for name, rows in (streams or {}).items()},
                spans={"cot": (cot[i],)} if cot else {},
                advantages=None if advantages is None else np.full(n, advantages[i], dtype=np.float64),
            )
        )
    return Group(Example(example, ()), tuple(rollouts))


@pytest.fixture
def make_group():
    return build


@pytest.fixture
def first():
    """First action token's advantage of every rollout of a group."""
    return lambda group: np.array([r.advantages[0] for r in group.rollouts])

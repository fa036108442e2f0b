"""Rollouts made by hand for reward tests."""

import numpy as np
import pytest

from coterie.core.types import Example, Group, Rollout


def make_group(texts, reference=None, finish="stop", id="e1", source="", meta=None):
    """A group whose rollouts have these texts and no tokens."""
    empty = np.zeros(0, dtype=np.int64)
    rollouts = tuple(Rollout(empty, empty, text, finish, index) for index, text in enumerate(texts))
    return Group(Example(id, ({"role": "user", "content": "?"},), reference, source, meta or {}), rollouts)


@pytest.fixture(scope="session")
def group_of():
    """`make_group` as a fixture, because test files don't import each other."""
    return make_group

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pytest

from coterie.algos.checks import require, require_between, require_choices, require_positive, stream_of


@dataclass(frozen=True)
class Piece:
    eps: float = 1.0
    mode: Literal["a", "b"] = "a"
    kind: ClassVar[str] = "x"


def test_messages_name_class_field_value_and_rule():
    with pytest.raises(ValueError, match=r"Piece\.eps=3\.0: must be small"):
        require(Piece(3.0), "eps", False, "must be small")
    require(Piece(), "eps", True, "never said")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_positive(value):
    with pytest.raises(ValueError, match="finite number > 0"):
        require_positive(Piece(value), "eps")


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_between(value):
    require_between(Piece(0.0), 0, 1, "eps")
    require_between(Piece(1.0), 0, 1, "eps")
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        require_between(Piece(value), 0, 1, "eps")


def test_choices_come_from_the_annotation():
    require_choices(Piece(mode="b"))
    with pytest.raises(ValueError, match=r"Piece\.mode='c': must be one of 'a', 'b'"):
        require_choices(Piece(mode="c"))


def test_streams_must_be_there_and_finite(make_group):
    rollout = make_group([1], [2], streams={"values": [[0.5, np.nan]], "old": [[1.0, 2.0]]}).rollouts[0]
    np.testing.assert_array_equal(stream_of(rollout, "old"), [1, 2])
    with pytest.raises(KeyError, match=r"no stream 'new'; streams there: \['old', 'values'\]"):
        stream_of(rollout, "new")
    with pytest.raises(ValueError, match="stream 'values' of rollout 0 is nan at action token 1"):
        stream_of(rollout, "values")

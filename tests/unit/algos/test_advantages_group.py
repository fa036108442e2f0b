from itertools import combinations

import numpy as np
import pytest

from coterie.algos.advantages import RLOO
from coterie.algos.advantages_group import (
    GPG,
    OPO,
    MaxRL,
    PassAtK,
    gpg_scale,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
)

NAN = np.nan
PIECES = [OPO(), GPG(), PassAtK(), PassAtK(k=2), PassAtK(std=True), MaxRL()]


@pytest.mark.parametrize("piece", PIECES, ids=repr)
def test_constant_group_is_exactly_zero(piece, make_group, first):
    out = piece([make_group([0.1] * 7, [1, 2, 3, 4, 5, 6, 7]), make_group([0.7]), make_group([1, 0])])
    assert not first(out[0]).any() and not first(out[1]).any() and first(out[2]).any()


@pytest.mark.parametrize("piece", PIECES, ids=repr)
def test_missing_scores_get_zero_and_change_nobody(piece, make_group, first):
    with_missing = first(piece([make_group([1, None, 0, 0.5], [2, 9, 3, 4]), make_group([1, 0])])[0])
    without = first(piece([make_group([1, 0, 0.5], [2, 3, 4]), make_group([1, 0])])[0])
    np.testing.assert_array_equal(with_missing, [without[0], 0, without[1], without[2]])


def test_opo_baseline_is_weighted_by_length():
    out = opo_advantages(np.array([1.0, 0.0]), np.array([3, 1]))
    np.testing.assert_allclose(out, [0.25, -0.75])
    assert not opo_advantages(np.array([1.0, 0.0]), np.array([0, 0])).any()


def test_opo_with_equal_lengths_is_the_mean(make_group, first):
    np.testing.assert_allclose(first(OPO()([make_group([1, 0, 0.5])])[0]), [0.5, -0.5, 0])


def test_raw_singletons_by_convention(make_group, first):
    group = make_group([0.7])
    assert first(OPO(**OPO.conventions["verl"])([group])[0])[0] == 0.7
    assert first(GPG(**GPG.conventions["verl"])([group])[0])[0] == 0.7


def test_gpg_scales_by_the_share_of_informative_rollouts(make_group, first):
    groups = [make_group([1, 0]), make_group([1, 1, 1, 1]), make_group([0, 0])]
    np.testing.assert_allclose(first(GPG()(groups)[0]), [4 * 0.5, -4 * 0.5])  # 8 rollouts, 2 of them informative
    verl = GPG(**GPG.conventions["verl"])(groups)
    np.testing.assert_allclose(first(verl[0]), [8 / 5 * 0.5, -8 / 5 * 0.5])  # 5 scores that are not 0
    np.testing.assert_allclose(first(GPG(f_norm=2)(groups)[0]), [1, -1])


def test_gpg_scale_edges():
    assert gpg_scale([np.array([1.0, 1.0])], "informative") == 2.0  # nothing informative: all advantages are 0 anyway
    assert gpg_scale([], "informative") == 0.0
    assert gpg_scale([np.array([NAN, 1.0, 0.0])], "informative") == 1.0


def test_best_of_k_trains_the_best_alone():
    np.testing.assert_allclose(pass_at_k_advantages(np.array([0.2, 0.9, 0.4])), [0, 0.5, 0])
    assert not pass_at_k_advantages(np.array([0.9, 0.9, 0.4])).any()


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_subsets_by_enumeration(k):
    scores = np.array([0.3, 1.0, 0.0, 1.0, 0.6])
    sets = list(combinations(range(5), k))
    expected = []
    for i in range(5):
        gains = [max(scores[list(s)]) - max(scores[[j for j in s if j != i]]) for s in sets if i in s]
        expected.append(np.mean(gains))
    np.testing.assert_allclose(pass_at_k_advantages(scores, k), expected, rtol=1e-12)


def test_k_above_the_group_size_takes_the_group():
    scores = np.array([0.2, NAN, 0.9])
    np.testing.assert_array_equal(pass_at_k_advantages(scores, 8), pass_at_k_advantages(scores))


def test_pass_at_k_over_the_deviation_is_verls(make_group, first):
    out = first(PassAtK(**PassAtK.conventions["verl"])([make_group([1, 0, 0])])[0])
    np.testing.assert_allclose(out, [1 / (np.std([1, 0, 0], ddof=1) + 1e-6), 0, 0])


def test_maxrl_weighs_by_one_over_the_pass_rate():
    np.testing.assert_allclose(maxrl_advantages(np.array([1.0, 0, 0, 0])), [3, -1, -1, -1])
    np.testing.assert_allclose(maxrl_advantages(np.array([1.0, 1, 1, 0])), [1 / 3, 1 / 3, 1 / 3, -1])
    np.testing.assert_allclose(maxrl_advantages(np.array([1.0, 0]), eps=0.5), [0.5, -0.5])
    assert not maxrl_advantages(np.array([NAN, NAN])).any() and not maxrl_advantages(np.zeros(3)).any()


def test_maxrl_refuses_negative_scores():
    with pytest.raises(ValueError, match=r"scores >= 0, got -0.5"):
        maxrl_advantages(np.array([1.0, -0.5]))


def test_pass_at_one_would_be_rloo(make_group):
    with pytest.raises(ValueError, match="PassAtK.k=1"):
        PassAtK(k=1)
    assert RLOO()([make_group([1, 0])])  # what the message leaves to do


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (OPO, {"singleton": "one"}),
        (GPG, {"f_norm": 0}),
        (GPG, {"count": "some"}),
        (PassAtK, {"eps": 0}),
        (PassAtK, {"ddof": -1}),
        (PassAtK, {"k": -2}),
        (MaxRL, {"eps": -1e-9}),
    ],
)
def test_bad_fields(cls, fields):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(fields))}="):
        cls(**fields)


@pytest.mark.parametrize("cls", [OPO, GPG, PassAtK, MaxRL])
def test_group_estimators_declare_themselves(cls):
    assert cls.min_group_size == 2 and cls.paper and cls(score="s").needs == {"score:s"}
    for overrides in cls.conventions.values():
        cls(**overrides)

import numpy as np
import pytest

from coterie.algos.advantages import GRPO, RLOO, DrGRPO, grpo_advantages, rloo_advantages, singleton_raw

NAN = np.nan


def convention(cls, name, **more):
    return cls(**{**cls.conventions[name], **more})


# specs/skywork_darling.md §E and specs/cs336.md §1.6


@pytest.mark.parametrize(
    ("scores", "std", "expected"),
    [
        ([1, 0, 0, 1], True, [0.8660239, -0.8660239, -0.8660239, 0.8660239]),
        ([1, 0, 0, 0], True, [1.499997, -0.499999, -0.499999, -0.499999]),
        ([1, 0, 0, 0], False, [0.75, -0.25, -0.25, -0.25]),
        ([0.2, 0.5, 0.0, 0.4], True, [-0.33824, 1.01472, -1.24021, 0.56373]),
        ([0.9, 0.7, 0.2, 0.0], True, [1.07062, 0.59479, -0.59479, -1.07062]),
        ([0.2, 0.5, 0.0, 0.4], False, [-0.075, 0.225, -0.275, 0.125]),
        ([2 / 3, 2 / 3, 0, 1], False, [0.083333, 0.083333, -0.583333, 0.416667]),
    ],
)
def test_golden_grpo(scores, std, expected):
    np.testing.assert_allclose(grpo_advantages(np.array(scores, dtype=float), std=std), expected, atol=6e-6)


def test_golden_rloo():
    np.testing.assert_allclose(rloo_advantages(np.array([1.0, 0, 0, 0])), [1, -1 / 3, -1 / 3, -1 / 3], rtol=1e-12)


def test_golden_singleton_passes_through_by_convention_only(make_group, first):
    group = make_group([0.7])
    assert first(convention(GRPO, "verl")([group])[0])[0] == pytest.approx(0.6999993, abs=1e-9)
    assert first(convention(DrGRPO, "verl")([group])[0])[0] == 0.7
    assert first(convention(RLOO, "verl")([group])[0])[0] == 0.7
    for piece in (GRPO(), DrGRPO(), RLOO(), convention(RLOO, "skyrl"), convention(GRPO, "slime")):
        assert first(piece([group])[0])[0] == 0


# Semantics


@pytest.mark.parametrize("piece", [GRPO(), GRPO(std_over="batch"), GRPO(std_over="others"), DrGRPO(), RLOO()])
def test_constant_group_is_exactly_zero(piece, make_group, first):
    out = piece([make_group([0.1] * 7), make_group([1, 0])])
    assert not first(out[0]).any() and first(out[1]).any()


@pytest.mark.parametrize("piece", [GRPO(), GRPO(std_over="batch"), GRPO(std_over="others"), DrGRPO(), RLOO()])
def test_missing_scores_get_zero_and_change_nobody(piece, make_group, first):
    with_missing = first(piece([make_group([1, None, 0, 0, None])])[0])
    without = first(piece([make_group([1, 0, 0])])[0])
    np.testing.assert_array_equal(with_missing, [without[0], 0, without[1], without[2], 0])
    assert not first(piece([make_group([None, None]), make_group([1, 0])])[0]).any()


def test_advantages_are_broadcast_over_action_tokens(make_group):
    out = GRPO()([make_group([1, 0], [3, 0])])[0]
    np.testing.assert_array_equal(out.rollouts[0].advantages, np.full(3, out.rollouts[0].advantages[0]))
    assert out.rollouts[1].advantages.shape == (0,)


def test_batch_deviation_is_that_of_all_scores(make_group, first):
    groups = [make_group([1, 0]), make_group([4, 2, None])]
    out = GRPO(std_over="batch", eps=1e-12)(groups)
    scale = np.std([1, 0, 4, 2], ddof=1)
    np.testing.assert_allclose(first(out[0]), np.array([0.5, -0.5]) / scale, rtol=1e-9)
    np.testing.assert_allclose(first(out[1]), np.array([1, -1, 0]) / scale, rtol=1e-9)


def test_deviation_of_the_others(make_group, first):
    out = first(convention(GRPO, "nemo_rl")([make_group([1, 0, 0, 3])])[0])
    assert out[1] == pytest.approx((0 - 4 / 3) / (np.std([1, 0, 3], ddof=1) + 1e-6))
    lonely = first(convention(GRPO, "nemo_rl")([make_group([1, 0, 0, 0])])[0])
    assert lonely[0] == 1.0  # the others are constant: not divided


def test_conventions_differ_in_eps_alone(make_group, first):
    scores = [0.5, 0.5 + 1e-6]
    sizes = {n: first(convention(GRPO, n)([make_group(scores)])[0])[1] for n in ("trl", "openrlhf", "areal", "verl")}
    spread = np.std(scores, ddof=1)
    for name, eps in {"trl": 1e-4, "openrlhf": 1e-9, "areal": 1e-5, "verl": 1e-6}.items():
        assert sizes[name] == pytest.approx(5e-7 / (spread + eps), rel=1e-6)
    assert sizes["openrlhf"] > 100 * sizes["trl"]


def test_ddof(make_group, first):
    assert first(GRPO(ddof=0, eps=1e-12)([make_group([1, 0])])[0])[0] == pytest.approx(1)
    assert first(GRPO(ddof=1, eps=1e-12)([make_group([1, 0])])[0])[0] == pytest.approx(0.5 * np.sqrt(2))


def test_uneven_groups_are_pooled_by_slimes_convention_only(make_group, first):
    uneven = [make_group([1, 0]), make_group([3, 2, 2])]
    np.testing.assert_allclose(first(GRPO()(uneven)[0]), first(GRPO()([uneven[0]])[0]))
    pooled = convention(GRPO, "slime")(uneven)
    everyone = grpo_advantages(np.array([1.0, 0, 3, 2, 2]))
    np.testing.assert_allclose(np.concatenate([first(g) for g in pooled]), everyone)
    even = [make_group([1, 0]), make_group([3, 2])]
    np.testing.assert_allclose(first(convention(GRPO, "slime")(even)[1]), first(GRPO()([even[1]])[0]))


def test_leave_one_out_is_rloo(make_group, first):
    group = make_group([3, 1, 0.5])
    np.testing.assert_allclose(first(GRPO(std=False, leave_one_out=True)([group])[0]), first(RLOO()([group])[0]))
    np.testing.assert_allclose(first(RLOO()([group])[0]), [3 - 0.75, 1 - 1.75, 0.5 - 2], rtol=1e-12)


def test_another_score_can_be_read(make_group, first):
    group = make_group([1, 1], judge=[0, 4])
    np.testing.assert_array_equal(first(DrGRPO(score="judge")([group])[0]), [-2, 2])
    assert GRPO(score="judge").needs == {"score:judge"}
    with pytest.raises(KeyError, match="other"):
        GRPO(score="other")([group])


def test_singleton_raw_counts_scores_that_are_there():
    np.testing.assert_array_equal(singleton_raw(np.array([NAN, 0.4])), [0, 0.4])
    assert singleton_raw(np.array([0.1, 0.4])) is None and singleton_raw(np.array([NAN])) is None


def test_no_groups():
    assert GRPO()([]) == [] and GRPO(std_over="batch")([]) == []


@pytest.mark.parametrize("cls", [GRPO, DrGRPO, RLOO])
def test_group_estimators_declare_themselves(cls):
    assert cls.min_group_size == 2 and cls.paper
    for overrides in cls.conventions.values():
        cls(**overrides)


@pytest.mark.parametrize(
    "fields",
    [{"eps": 0}, {"eps": -1e-6}, {"ddof": 2}, {"std_over": "all"}, {"singleton": "nan"}, {"eps": float("nan")}],
)
def test_bad_fields(fields):
    with pytest.raises(ValueError, match=f"GRPO.{next(iter(fields))}="):
        GRPO(**fields)

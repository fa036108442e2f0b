from dataclasses import replace

import numpy as np
import pytest

from coterie.algos.gae import GAE, gae_advantages


def golden(make_group):
    """specs/skywork_darling.md §E: R = [[0,0,1],[0,0,0]], V = [[.1,.2,.3],[.2,.1,0]], m = [[1,1,1],[1,1,0]]."""
    return [make_group([1, 0], [3, 2], streams={"values": [[0.1, 0.2, 0.3], [0.2, 0.1]]})]


def flat(groups, of=lambda r: r.advantages):
    return np.concatenate([of(r) for g in groups for r in g.rollouts])


@pytest.mark.parametrize(
    ("lam", "raw", "returns", "white"),
    [
        (
            0.95,
            [0.82675, 0.765, 0.7, -0.195, -0.1],
            [0.92675, 0.965, 1, 0.005, 0],
            [0.85082593, 0.7279001, 0.59850448, -1.18317359, -0.99405692],
        ),
        (
            1.0,
            [0.9, 0.8, 0.7, -0.2, -0.1],
            [1, 1, 1, 0, 0],
            [0.91201366, 0.72201082, 0.53200797, -1.17801765, -0.9880148],
        ),
    ],
)
def test_golden(lam, raw, returns, white, make_group):
    out = GAE(lam=lam, whiten=False)(golden(make_group))
    np.testing.assert_allclose(flat(out), raw, atol=1e-12)
    np.testing.assert_allclose(flat(out, lambda r: r.streams["returns"]), returns, atol=1e-12)
    whitened = GAE(lam=lam)(golden(make_group))
    np.testing.assert_allclose(flat(whitened), white, atol=1e-7)
    np.testing.assert_allclose(flat(whitened, lambda r: r.streams["returns"]), returns, atol=1e-12)


def test_lambda_zero_is_the_one_step_error():
    out = gae_advantages(np.array([0.0, 1.0]), np.array([0.3, 0.5]), gamma=0.9, lam=0.0, bootstrap_value=2.0)
    np.testing.assert_allclose(out, [0.9 * 0.5 - 0.3, 1 + 0.9 * 2 - 0.5])


def test_lambda_one_is_the_return_minus_the_value():
    values = np.array([0.3, 0.5, -0.2])
    out = gae_advantages(np.array([0.0, 1.0, 2.0]), values, gamma=1.0, lam=1.0, bootstrap_value=4.0)
    np.testing.assert_allclose(out, np.array([7, 7, 6]) - values)


def test_truncated_rollouts_bootstrap(make_group):
    group = make_group([0], [2], streams={"values": [[0.0, 0.0]]})
    truncated = group.with_rollouts([replace(group.rollouts[0], bootstrap_value=1.0)])
    np.testing.assert_array_equal(flat(GAE(whiten=False, lam=1.0)([truncated])), [1, 1])
    np.testing.assert_array_equal(flat(GAE(whiten=False, lam=1.0)([group])), [0, 0])


def test_tool_tokens_take_no_step(make_group):
    """Trap 6: the recursion goes from one turn's last token to the next turn's first, whatever lies between."""
    group = make_group([1], [3], streams={"values": [[0.1, 0.2, 0.3]]})
    spread = replace(group.rollouts[0], tokens=np.arange(20), action_index=np.array([2, 3, 15]))
    np.testing.assert_array_equal(flat(GAE()([group])), flat(GAE()([group.with_rollouts([spread])])))


def test_missing_scores_learn_nothing_and_change_nobody(make_group):
    values = [[0.1, 0.2], [5.0, 6.0], [0.3, 0.1]]
    out = GAE()([make_group([1, None, 0], streams={"values": values})])
    rest = GAE()([make_group([1, 0], streams={"values": [values[0], values[2]]})])
    np.testing.assert_array_equal(out[0].rollouts[1].advantages, [0, 0])
    np.testing.assert_array_equal(out[0].rollouts[1].streams["returns"], values[1])
    np.testing.assert_array_equal(np.delete(flat(out), [2, 3]), flat(rest))


def test_lambda_by_length():
    piece = GAE(lam_of="length", alpha=0.05)
    assert piece.lam_for(100) == pytest.approx(1 - 1 / 5)
    assert piece.lam_for(10) == 0.0 and piece.lam_for(0) == 0.0
    assert GAE(lam_of="length", alpha=2).lam_for(1000) == pytest.approx(1 - 1 / 2000)


def test_lambda_by_position_keeps_the_same_share_of_the_end():
    piece = GAE(lam_of="position", lam=0.5)
    assert piece.lam_for(11) ** 10 == pytest.approx(0.5) and piece.lam_for(101) ** 100 == pytest.approx(0.5)
    assert piece.lam_for(1) == 1.0


def test_critic_has_its_own_lambda(make_group):
    out = GAE(lam=0.5, value_lam=1.0, whiten=False)(golden(make_group))
    np.testing.assert_allclose(flat(out, lambda r: r.streams["returns"]), [1, 1, 1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(flat(out), flat(GAE(lam=0.5, whiten=False)(golden(make_group))))


def test_one_token_and_no_token(make_group):
    out = GAE()([make_group([1, 0], [1, 0], streams={"values": [[0.2], []]})])
    np.testing.assert_array_equal(flat(out), [0])
    assert GAE()([]) == []


def test_whitening_conventions(make_group):
    raw = flat(GAE(lam=1.0, whiten=False)(golden(make_group)))
    for name, scale in {
        "verl": 1 / np.sqrt(raw.var(ddof=1) + 1e-8),
        "openrlhf": 1 / np.sqrt(raw.var()),
        "areal": 1 / (raw.std(ddof=1) + 1e-5),
    }.items():
        out = flat(GAE(**{**GAE.conventions[name], "lam": 1.0})(golden(make_group)))
        np.testing.assert_allclose(out, (raw - raw.mean()) * scale, rtol=1e-12)


def test_needs_and_size():
    assert GAE(values="v").needs == {"score:reward", "stream:v"}
    assert GAE.min_group_size == 1 and GAE().writes == {"stream:returns"}
    for overrides in GAE.conventions.values():
        GAE(**overrides)


@pytest.mark.parametrize(
    "fields",
    [
        {"gamma": 1.1},
        {"lam": -0.1},
        {"eps": 0},
        {"alpha": 0},
        {"ddof": 2},
        {"value_lam": 2},
        {"lam_of": "x"},
        {"floor": "x"},
    ],
)
def test_bad_fields(fields):
    with pytest.raises(ValueError, match=f"GAE.{next(iter(fields))}="):
        GAE(**fields)


def test_turn_level_makes_one_step_of_a_turn(make_group):
    """Two turns of two and one tokens: V at their first tokens, one advantage a turn."""
    streams = {"values": [[0.1, 9.0, 0.3]], "reward_tokens": [[0.5, 0.25, 1.0]]}
    group = make_group([1.75], [3], streams=streams)
    turns = replace(group.rollouts[0], tokens=np.arange(9), action_index=np.array([2, 3, 7]))
    out = GAE(level="turn", gamma=0.9, lam=0.5, whiten=False)([group.with_rollouts([turns])])[0].rollouts[0]
    last = 1.0 - 0.3
    start = 0.75 + 0.9 * 0.3 - 0.1 + 0.45 * last
    np.testing.assert_allclose(out.advantages, [start, start, last])
    np.testing.assert_allclose(out.streams["returns"], [start + 0.1, 9.0, 1.0])
    single = GAE(level="turn", whiten=False)([group])[0].rollouts[0]
    np.testing.assert_allclose(single.advantages, [1.65] * 3)


def test_turn_level_of_an_empty_rollout(make_group):
    out = GAE(level="turn")([make_group([1], [0], streams={"values": [[]]})])
    assert out[0].rollouts[0].advantages.shape == (0,)


def test_defaults():
    rewards, values = np.array([0.0, 1.0]), np.array([0.5, 0.25])
    np.testing.assert_allclose(gae_advantages(rewards, values), [0.25 - 0.5 + 0.95 * 0.75, 0.75])
    assert GAE(lam_of="length").lam_for(100) == pytest.approx(0.8)
    assert (GAE(value_lam=0.0).value_lam, GAE(value_lam=1.0).value_lam) == (0, 1)

import numpy as np
import pytest

from coterie.algos.advantages_dense import PRIME, KLAdvantage, MiniLLM, OnPolicyDistillation


def flat(groups):
    return [r.advantages for g in groups for r in g.rollouts]


def prime_group(make_group, scores, prm, **kwargs):
    zeros = [np.zeros(len(row)) for row in prm]
    return make_group(scores, [len(row) for row in prm], streams={"prm_logprobs": prm, "ref_logprobs": zeros}, **kwargs)


def test_prime_by_hand(make_group):
    group = prime_group(make_group, [1, 0], [[1.0, 3.0], [4.0]])
    out = flat(PRIME(beta=1, process_coef=1, outcome_coef=10, whiten=False)([group]))
    np.testing.assert_allclose(out[0], [(1 - 4) + (3 - 4) + 10, (3 - 4) + 10])  # means: 2 and 4
    np.testing.assert_allclose(out[1], [4 - 2 - 10])


def test_prime_outcome_is_not_discounted(make_group):
    group = prime_group(make_group, [1, 0], [[0.0, 0.0], [0.0]])
    out = flat(PRIME(gamma=0.5, whiten=False)([group]))
    np.testing.assert_array_equal(out[0], [5, 5])


def test_prime_released_code_differs_from_the_paper(make_group):
    group = prime_group(make_group, [1, 1], [[1.0, 3.0], [4.0, 0.0]])
    paper = flat(PRIME(beta=1, process_coef=1, whiten=False)([group]))
    code = flat(PRIME(beta=1, process_coef=1, whiten=False, own="token")([group]))
    np.testing.assert_allclose(paper[0], [(1 - 2) + (3 - 2), 3 - 2])  # means: 2 and 2
    np.testing.assert_allclose(code[0], [(2 * 1 - 4) + (2 * 3 - 4), 2 * 3 - 4])
    without_last = flat(PRIME(beta=1, process_coef=1, whiten=False, last_token=False)([group]))
    np.testing.assert_allclose(without_last[0], [(1 - 2) + (0 - 2), 0 - 2])  # means: 0.5 and 2


def test_prime_scale_and_smoothing(make_group):
    group = prime_group(make_group, [1, 1, None], [[1.0, 3.0], [-5.0, 0.0], [100.0, 0.0]])
    base = flat(PRIME(beta=1, whiten=False)([group]))
    scaled = flat(PRIME(beta=1, whiten=False, scale="batch")([group]))
    np.testing.assert_allclose(scaled[0], base[0] / (5 + 1e-6))  # the rollout without a score is not the peak
    by_hand = prime_group(make_group, [1, 1], [[1.0, 3.0], [0.0, 0.0]])
    smoothed = flat(PRIME(beta=1, process_coef=1, whiten=False, lam=0.5)([by_hand]))
    np.testing.assert_allclose(smoothed[0], [2.5 + 3, 3])  # process rewards 2.5 and 3 against a mean of 0


def test_prime_missing_scores_get_zero_and_change_nobody(make_group):
    with_missing = flat(PRIME()([prime_group(make_group, [1, None, 0], [[1.0, 3.0], [9.0], [4.0]])]))
    without = flat(PRIME()([prime_group(make_group, [1, 0], [[1.0, 3.0], [4.0]])]))
    assert not with_missing.pop(1).any()
    for a, b in zip(with_missing, without, strict=True):
        np.testing.assert_array_equal(a, b)


def test_prime_needs_two_scored_rollouts(make_group):
    assert not np.concatenate(flat(PRIME()([prime_group(make_group, [1, None], [[1.0, 2.0], [3.0]])]))).any()


def test_prime_rollouts_without_action_tokens(make_group):
    out = flat(PRIME(beta=1, whiten=False)([prime_group(make_group, [1, 0, 0.5], [[1.0, 3.0], [], []])]))
    np.testing.assert_allclose(out[0], [5 * 0.75, 5 * 0.75])  # alone in the process baseline, not in the outcome's
    assert out[1].shape == (0,)


def streams(teacher, policy):
    return {"teacher_logprobs": teacher, "old_logprobs": policy, "ref_logprobs": teacher}


def test_distillation_is_the_gap(make_group):
    group = make_group([None], [2], streams=streams([[-1.0, -2.0]], [[-3.0, -2.0]]), advantages=[0.5])
    np.testing.assert_array_equal(flat(OnPolicyDistillation()([group]))[0], [2, 0])
    np.testing.assert_array_equal(flat(OnPolicyDistillation(coef=0.5, add=True)([group]))[0], [1.5, 0.5])
    assert OnPolicyDistillation(policy="sampler_logprobs").needs == {
        "stream:teacher_logprobs",
        "stream:sampler_logprobs",
    }


def test_distillation_refuses_missing_logprobs(make_group):
    group = make_group([None], [2], streams=streams([[-1.0, np.nan]], [[-3.0, -2.0]]))
    with pytest.raises(ValueError, match="nan at action token 1"):
        OnPolicyDistillation()([group])


def test_minillm_by_hand(make_group):
    group = make_group([None], [2], streams=streams([[-1.0, -2.0]], [[-3.0, -3.0]]))  # gaps 2, 1
    np.testing.assert_allclose(flat(MiniLLM(normalise_length=False, gamma=0.5)([group]))[0], [2.5, 0.5])
    np.testing.assert_allclose(flat(MiniLLM(gamma=0.5)([group]))[0], [2.5 / 1.5, 1.0])
    np.testing.assert_allclose(flat(MiniLLM()([group]))[0], [1.5, 1.0])


def test_minillm_floor(make_group):
    group = make_group([None], [3], streams=streams([[0.0, 0.0, -1.0]], [[0.0, 0.0, -2.0]]))
    np.testing.assert_allclose(flat(MiniLLM(gamma=0.001)([group]))[0][2], 1e-6 / 1e-4)


def test_kl_advantage_centred_sums_to_zero(make_group):
    group = make_group(
        [1, 0], [2, 1], streams=streams([[-1.0, -2.0], [-1.0]], [[-3.0, -2.0], [0.0]]), advantages=[1, -1]
    )
    out = flat(KLAdvantage(coef=0.5)([group]))
    d = np.array([-2.0, 0.0, 1.0])
    np.testing.assert_allclose(np.concatenate(out), np.array([1, 1, -1]) - 0.5 * (d - d.mean()))
    plain = flat(KLAdvantage(coef=0.5, center=False)([group]))
    np.testing.assert_allclose(np.concatenate(plain), np.array([1, 1, -1]) - 0.5 * d)
    spread = flat(KLAdvantage(coef=0.5, center=False, gamma=1.0)([group]))
    np.testing.assert_allclose(np.concatenate(spread), np.array([1, 1, -1]) - 0.5 * np.array([-2, 0, 1.0]))


def test_kl_advantage_leaves_missing_scores_alone(make_group):
    group = make_group([1, None], [1, 1], streams=streams([[-1.0], [-1.0]], [[-3.0], [-9.0]]), advantages=[1, 0])
    out = flat(KLAdvantage(center=True, coef=1)([group]))
    np.testing.assert_array_equal(np.concatenate(out), [1, 0])  # its own mean is taken off again
    assert KLAdvantage(score="").needs == {"stream:old_logprobs", "stream:ref_logprobs"}
    assert flat(KLAdvantage(score="", coef=1, center=False)([group]))[1][0] == 8


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (PRIME, {"beta": 0}),
        (PRIME, {"gamma": -0.1}),
        (PRIME, {"gamma": 1.5}),
        (PRIME, {"outcome_coef": -1}),
        (PRIME, {"own": "mean"}),
        (PRIME, {"ddof": 4}),
        (OnPolicyDistillation, {"coef": 0}),
        (MiniLLM, {"gamma": 1.5}),
        (KLAdvantage, {"coef": 0}),
        (KLAdvantage, {"kind": "k4"}),
        (KLAdvantage, {"gamma": 1.5}),
    ],
)
def test_bad_fields(cls, fields):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(fields))}="):
        cls(**fields)


@pytest.mark.parametrize("cls", [PRIME, OnPolicyDistillation, MiniLLM, KLAdvantage])
def test_conventions_construct(cls):
    for overrides in cls.conventions.values():
        piece = cls(**overrides)
        assert {name: getattr(piece, name) for name in overrides} == overrides


def test_ends_of_the_ranges_are_allowed():
    assert PRIME(gamma=0, lam=1, process_coef=0, outcome_coef=0).gamma == 0
    assert PRIME(gamma=1, lam=0).lam == 0
    assert MiniLLM(gamma=0).gamma == 0
    assert KLAdvantage(gamma=1).gamma == 1

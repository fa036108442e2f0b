import numpy as np
import pytest

from coterie.algos.advantages import GRPO, DrGRPO
from coterie.algos.advantages_multi import GDPO, Classmate, normalised, spread

MAIN = [[3, 5, 7, 9], [2, 2, 8, 4]]
MATE = [[1, 2, 6, 7], [5, 5, 5, 1]]
COT = [(1, 2)] * 4

# specs/classmate.md §3: norm_by_std False and True
TABLE = {
    ("A_m", False): [[-3, -1, 1, 3], [-2, -2, 4, 0]],
    ("A_m", True): [[-1.161895, -0.387298, 0.387298, 1.161895], [-0.707107, -0.707107, 1.414213, 0]],
    ("A_j", False): [[-6, -3, 3, 6], [-1, -1, 5, -3]],
    ("A_j", True): [[-1.095445, -0.547722, 0.547722, 1.095445], [-0.288675, -0.288675, 1.443375, -0.866025]],
    ("S", False): [[-6, -3, 3, 6], [-1, -1, 5, -3]],
    ("S", True): [[-2.180944, -1.066664, 1.066664, 2.180944], [-0.207107, -0.207107, 1.914213, -1.499999]],
    ("G", False): [[-1.414213, -0.707107, 0.707107, 1.414213], [-0.235702, -0.235702, 1.178511, -0.707107]],
    ("G", True): [[-1.368115, -0.669123, 0.669123, 1.368115], [-0.129919, -0.129919, 1.200794, -0.940956]],
}


def groups(make_group, cot=COT):
    return [make_group(m, [3] * 4, classmate=c, cot=cot) for m, c in zip(MAIN, MATE, strict=True)]


def tokens(out):
    return np.array([[r.advantages for r in g.rollouts] for g in out])


def classmate(name, **fields):
    return Classmate(**{**Classmate.conventions[name], **fields})


@pytest.mark.parametrize("std", [False, True])
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("grpo_w_classmate", "A_j"),
        ("gdpo_wo_bn", "S"),
        ("gdpo", "G"),
        ("grpo_main_classmate_separated", "S"),
    ],
)
def test_golden_classmate_table(name, row, std, make_group):
    out = tokens(classmate(name, std=std)(groups(make_group)))
    np.testing.assert_allclose(out[:, :, 1], TABLE[row, std], atol=1e-6)  # the token in the span
    np.testing.assert_allclose(out[:, :, 0], TABLE["A_m", std], atol=1e-6)
    np.testing.assert_allclose(out[:, :, 2], TABLE["A_m", std], atol=1e-6)
    everywhere = tokens(classmate(name, std=std, tokens="all")(groups(make_group)))
    np.testing.assert_allclose(everywhere, np.repeat(np.array(TABLE[row, std])[:, :, None], 3, axis=2), atol=1e-6)


def test_non_negative_classmates_only_raise(make_group):
    out = tokens(classmate("grpo_main_classmate_separated_non_neg_cl")(groups(make_group)))
    main, mate = np.array(TABLE["A_m", False]), np.array([[-3, -2, 2, 3], [1, 1, 1, -3]])
    np.testing.assert_allclose(out[:, :, 1], main + np.maximum(mate, 0))


def test_without_deviation_the_forms_coincide(make_group):
    one, two = (tokens(classmate(n)(groups(make_group))) for n in ("grpo_w_classmate", "gdpo_wo_bn"))
    np.testing.assert_allclose(one, two)


def test_classmate_without_the_span_is_the_main_score(make_group):
    plain = [make_group(m, [3] * 4, classmate=c) for m, c in zip(MAIN, MATE, strict=True)]
    np.testing.assert_array_equal(tokens(Classmate()(plain)), tokens(DrGRPO()(plain)))


def test_classmate_missing_scores(make_group):
    group = make_group([1, 0, 1, None], [2] * 4, classmate=[1, 0, None, 1], cot=[(0, 1)] * 4)
    out = tokens(Classmate()([group]))[0]
    np.testing.assert_allclose(out[:, 1], [1 / 3, -2 / 3, 1 / 3, 0])  # outside the span: the main score alone
    np.testing.assert_allclose(out[:, 0], [1, -1, 0, 0])  # in it: both scores, of the rollouts that have both


def test_classmate_constant_groups_stay_zero(make_group):
    constant = make_group([1, 1], [2, 2], classmate=[0.1, 0.1], cot=[(0, 1)] * 2)
    both = [*groups(make_group), constant]
    for name in ("grpo_w_classmate", "gdpo_wo_bn"):
        assert not np.concatenate([r.advantages for r in classmate(name)(both)[2].rollouts]).any()
    whitened = Classmate(combine="advantages", whiten=True)
    np.testing.assert_array_equal(tokens(whitened(both)[:2]), tokens(whitened(groups(make_group))))
    assert not np.concatenate([r.advantages for r in whitened(both)[2].rollouts]).any()


def test_classmate_needs():
    assert Classmate().needs == {"score:reward", "score:classmate", "span:cot"}
    assert Classmate(tokens="all", main="m").needs == {"score:m", "score:classmate"}


# GDPO


def test_gdpo_of_one_score_is_whitened_grpo(make_group):
    single = [make_group(m) for m in MAIN]
    raw = GDPO(whiten="off")(single)
    np.testing.assert_array_equal(tokens(raw), tokens(GRPO()(single)))
    out = tokens(GDPO()(single))[:, :, 0]
    assert out.mean() == pytest.approx(0) and out.std(ddof=1) == pytest.approx(1, abs=1e-5)


def test_gdpo_keeps_combinations_apart(make_group):
    """Figure 2 of the paper: (0, 1) and (0, 2) collapse in GRPO on the sum, not here."""
    sums = [make_group([0, 1]), make_group([0, 2])]
    pairs = [make_group([0, 1], format=[0, 0]), make_group([0, 1], format=[0, 1])]
    collapsed = tokens(GRPO()(sums))[:, :, 0]
    np.testing.assert_allclose(collapsed[0], collapsed[1], rtol=1e-5)
    apart = tokens(GDPO(scores=("reward", "format"), whiten="off")(pairs))[:, :, 0]
    np.testing.assert_allclose(apart[1], 2 * apart[0])


def test_gdpo_weights_before_and_after(make_group):
    group = make_group([0, 1, 1], format=[1, 0, 0.5])
    a = tokens(GRPO()([group]))[0, :, 0]
    b = tokens(GRPO(score="format")([group]))[0, :, 0]
    fields = {"scores": ("reward", "format"), "weights": (1.0, 3.0), "whiten": "off"}
    np.testing.assert_allclose(tokens(GDPO(**fields)([group]))[0, :, 0], a + 3 * b)
    cancelled = tokens(GDPO(**fields, weigh="scores")([group]))[0, :, 0]
    np.testing.assert_allclose(cancelled, a + b, rtol=1e-5)  # division by the deviation cancels the weight
    kept = tokens(GDPO(**fields, weigh="scores", std=False)([group]))[0, :, 0]
    np.testing.assert_allclose(kept, (np.array([0, 1, 1]) - 2 / 3) + 3 * (np.array([1, 0, 0.5]) - 0.5))


def test_gdpo_token_and_sequence_whitening(make_group):
    group = [make_group([0, 1], [3, 1]), make_group([0, 1, 5], [1, 2, 2])]
    raw = np.concatenate([r.advantages for g in GDPO(whiten="off")(group) for r in g.rollouts])
    verl = GDPO(**GDPO.conventions["verl"])(group)
    out = np.concatenate([r.advantages for g in verl for r in g.rollouts])
    np.testing.assert_allclose(out, (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8), rtol=1e-6)
    once = np.array([r.advantages[0] for g in GDPO(whiten="off")(group) for r in g.rollouts])
    seq = np.array([r.advantages[0] for g in GDPO()(group) for r in g.rollouts])
    np.testing.assert_allclose(seq, (once - once.mean()) / (once.std(ddof=1) + 1e-6))


def test_gdpo_missing_scores(make_group):
    with_missing = make_group([0, 1, 1, 0], format=[1, 0, None, 0.5])
    without = make_group([0, 1, 0], format=[1, 0, 0.5])
    piece = GDPO(scores=("reward", "format"))
    out, expected = tokens(piece([with_missing]))[0, :, 0], tokens(piece([without]))[0, :, 0]
    np.testing.assert_array_equal(out, [expected[0], expected[1], 0, expected[2]])
    own = tokens(GDPO(scores=("reward", "format"), missing="own", whiten="off")([with_missing]))[0, :, 0]
    np.testing.assert_allclose(own[2], tokens(GRPO()([with_missing]))[0, 2, 0])


def test_gdpo_constant_scores_add_exactly_zero(make_group):
    group = make_group([0, 1, 1], format=[0.1, 0.1, 0.1])
    out = GDPO(scores=("reward", "format"), whiten="off")([group])
    np.testing.assert_array_equal(tokens(out), tokens(GRPO()([group])))
    constant = make_group([1, 1], format=[0.1, 0.1])
    both = GDPO(scores=("reward", "format"))([group, constant])
    assert not tokens(both[1:]).any()
    np.testing.assert_array_equal(tokens(both[:1]), tokens(GDPO(scores=("reward", "format"))([group])))
    assert tokens(GDPO(zero_groups=True, whiten="tokens")([make_group([1, 0], [3, 1]), make_group([1, 1])])[1:]).any()


def test_gdpo_nemo_moments(make_group):
    group = make_group([1, 0, 0, 3])
    fields = {**GDPO.conventions["nemo_rl"], "whiten": "off"}
    np.testing.assert_array_equal(tokens(GDPO(**fields)([group])), tokens(GRPO(**GRPO.conventions["nemo_rl"])([group])))


def test_normalised_leaves_missing_and_zero_groups():
    values = [np.array([1.0, np.nan, -1.0]), np.array([0.0, 0.0])]
    out = normalised(values, 1, 1e-12, "std")
    np.testing.assert_allclose(out[0], [1 / np.sqrt(2), np.nan, -1 / np.sqrt(2)])
    assert not out[1].any()
    along = normalised([np.array([3.0, 1.0]), np.array([0.0, 0.0])], 1, 1e-12, "std", zero_groups=True)
    assert along[1].all() and along[1][0] < 0


def test_spread(make_group):
    group = make_group([1, 1], [3, 3], cot=[(0, 1), (1, 3)])
    out = spread(group, np.array([5.0, 6.0]), np.array([1.0, 2.0]), "cot")
    np.testing.assert_array_equal(tokens([out])[0], [[5, 1, 1], [2, 6, 6]])


@pytest.mark.parametrize(
    ("cls", "fields", "name"),
    [
        (GDPO, {"scores": ()}, "scores"),
        (GDPO, {"scores": ("a", "a")}, "scores"),
        (GDPO, {"weights": (1.0, 2.0)}, "weights"),
        (GDPO, {"eps": 0}, "eps"),
        (GDPO, {"whiten": "groups"}, "whiten"),
        (GDPO, {"ddof": 2}, "ddof"),
        (Classmate, {"whiten": True}, "whiten"),
        (Classmate, {"non_negative": True}, "non_negative"),
        (Classmate, {"classmate": "reward"}, "classmate"),
        (Classmate, {"eps": 0}, "eps"),
        (Classmate, {"ddof": 2}, "ddof"),
    ],
)
def test_bad_fields(cls, fields, name):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{name}="):
        cls(**fields)


@pytest.mark.parametrize("cls", [GDPO, Classmate])
def test_conventions_construct(cls):
    assert cls.min_group_size == 2
    for overrides in cls.conventions.values():
        cls(**overrides)

"""What every piece of the host side declares: fields with choices, needs, conventions, documentation."""

import dataclasses
import inspect
import re
from importlib import import_module
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

MODULES = (
    "advantages advantages_dense advantages_group advantages_multi advantages_tokens advantages_turns coefs filters "
    "gae replay sampling shaping transforms"
)
PIECES = [
    c
    for m in MODULES.split()
    for c in vars(import_module(f"coterie.algos.{m}")).values()
    if inspect.isclass(c) and c.__module__ == f"coterie.algos.{m}" and hasattr(c, "conventions")
]
CHOICES = [
    (c, f.name) for c in PIECES for f in dataclasses.fields(c) if get_origin(get_type_hints(c)[f.name]) is Literal
]


def default(cls, **fields):
    return cls(**fields)


@pytest.mark.parametrize(("cls", "name"), CHOICES, ids=lambda v: getattr(v, "__name__", v))
def test_a_choice_that_is_none_is_refused(cls, name):
    choices = get_args(get_type_hints(cls)[name])
    with pytest.raises(ValueError, match=re.escape(f"{cls.__name__}.{name}='junk': must be one of {choices[0]!r}")):
        default(cls, **{name: "junk"})


@pytest.mark.parametrize("cls", PIECES, ids=lambda c: c.__name__)
def test_conventions_are_overrides_that_construct(cls):
    names = {f.name for f in dataclasses.fields(cls)}
    for overrides in cls.conventions.values():
        assert set(overrides) <= names
        default(cls, **overrides)


@pytest.mark.parametrize("cls", PIECES, ids=lambda c: c.__name__)
def test_needs_name_the_kind(cls):
    for need in getattr(default(cls), "needs", ()):
        assert need.split(":")[0] in {"score", "stream", "span"} and need.split(":")[1]


@pytest.mark.parametrize("cls", [c for c in PIECES if "score" in c.__dataclass_fields__], ids=lambda c: c.__name__)
def test_the_score_read_can_be_named(cls):
    assert "score:other" in default(cls, score="other").needs


@pytest.mark.parametrize("cls", PIECES, ids=lambda c: c.__name__)
def test_pieces_are_frozen_and_documented(cls):
    assert cls.__dataclass_params__.frozen
    text = inspect.getdoc(cls)
    for f in dataclasses.fields(cls):
        assert re.search(rf"^    {f.name}: ", text, re.MULTILINE), f"{f.name} has no line under Attributes"
    if cls.__name__ != "Fixed":
        assert re.search(r"^(Equation|Rule): ", text, re.MULTILINE)
        assert re.search(r"^Paper: ", text, re.MULTILINE) and re.search(r"^Degenerate cases: ", text, re.MULTILINE)


DEFAULTS = [
    (
        "AdaptiveEntropy(coef=0.0, target=0.2, delta=0.0001, low=0.0, high=0.005, gate=True, timing='lagged', "
        "at_target='hold', metric='policy/entropy')"
    ),
    "AdaptiveKL(coef=0.001, target=0.1, horizon=10000.0, sequences=256, metric='kl/ref_k1')",
    (
        "Classmate(main='reward', classmate='classmate', combine='rewards', tokens='partial', span='cot', "
        "non_negative=False, whiten=False, std=False, ddof=1, eps=1e-06, zero_groups=False)"
    ),
    "ClipAdvantages(low=-5.0, high=5.0)",
    "DifficultyPools(score='reward', thresholds=(0.25, 0.75, 1.0), weights=(0.2, 1.0, 0.2))",
    "DrGRPO(score='reward', singleton='zero')",
    "DropConstant(score='reward', tolerance=0.0, keep_singletons=False)",
    "DropMissing(scores=('reward',), min_rollouts=1)",
    "DropTruncated(min_rollouts=1)",
    "DynamicSampling(max_batches=10, when_exhausted='error')",
    "Fixed(coef=0.0)",
    (
        "GAE(score='reward', level='token', gamma=1.0, lam=0.95, lam_of='fixed', alpha=0.05, value_lam=-1.0, "
        "values='values', whiten=True, ddof=1, eps=1e-08, floor='variance')"
    ),
    (
        "GDPO(scores=('reward',), weights=(), weigh='advantages', std=True, std_over='group', "
        "leave_one_out=False, ddof=1, eps=1e-06, missing='any', whiten='sequences', whiten_eps=1e-06, "
        "whiten_floor='std', zero_groups=False)"
    ),
    "GPG(score='reward', f_norm=1.0, count='informative', singleton='zero')",
    (
        "GRPO(score='reward', std=True, std_over='group', ddof=1, eps=1e-06, leave_one_out=False, "
        "singleton='zero', uneven='own')"
    ),
    "GiGPO(score='reward', step_weight=1.0, gamma=0.95, std=True, ddof=1, eps=1e-06)",
    (
        "KLAdvantage(coef=0.001, kind='k1', center=True, gamma=0.0, score='reward', policy='old_logprobs', "
        "reference='ref_logprobs', clamp='k3')"
    ),
    "KLReward(score='reward', coef=0.001, kind='k1', policy='old_logprobs', reference='ref_logprobs', clamp='k3')",
    "KeepGroups(count=1)",
    "LengthPenalty(score='reward', output=0.25, context=0.1, turns=0.1)",
    "MaxRL(score='reward', eps=0.0)",
    "MiniLLM(teacher='teacher_logprobs', policy='old_logprobs', gamma=1.0, normalise_length=True)",
    "OPO(score='reward', singleton='zero')",
    (
        "OTB(score='reward', policy='old_logprobs', energy='sum_probs_squared', importance='', zero_tail=False, "
        "eps=1e-08)"
    ),
    "OnPolicyDistillation(teacher='teacher_logprobs', policy='old_logprobs', coef=1.0, add=False)",
    "OnlySpan(span='cot', invert=False)",
    "OverlongPenalty(score='reward', max_tokens=20480, buffer=4096, factor=1.0, cap=True)",
    "PFPPO(score='reward', weighing='power', power=2.0, seed=0)",
    (
        "PRIME(score='reward', prm='prm_logprobs', reference='ref_logprobs', beta=0.05, process_coef=5.0, "
        "outcome_coef=5.0, gamma=1.0, lam=0.0, own='rollout', last_token=True, scale='none', whiten=True, ddof=1, "
        "eps=1e-08, floor='variance')"
    ),
    "PassAtK(score='reward', k=0, std=False, ddof=1, eps=1e-06)",
    "RLOO(score='reward', singleton='zero')",
    "ReMax(score='reward')",
    "ReinforcePlusPlus(score='reward', gamma=1.0, std=True, ddof=1, eps=1e-08, floor='variance')",
    (
        "ReinforcePlusPlusBaseline(score='reward', std=True, ddof=1, eps=1e-08, floor='variance', "
        "zero_groups=False, singleton='zero')"
    ),
    "ReplaceConstant(score='reward', tolerance=0.0, min_good=0.3, seed=0)",
    "Replay(score='reward', size=64, max_age=8, seed=0)",
    "ScaleReward(score='reward', bias=0.0, scale=1.0, low=-inf, high=inf)",
    "ScaleSpan(span='cot', inside=1.0, outside=0.0)",
    "SolveRate(score='reward', low=0.0, high=1.0, inclusive=False)",
    "StopProperly(score='reward', factor=0.0)",
    "Truncated(mode='none')",
    (
        "Whiten(score='reward', span='', over='tokens', center=True, scale=True, ddof=1, eps=1e-08, "
        "floor='variance', zero_groups=False)"
    ),
]


@pytest.mark.parametrize(
    ("cls", "expected"), list(zip(sorted(PIECES, key=lambda c: c.__name__), DEFAULTS, strict=True))
)
def test_defaults_are_part_of_the_method(cls, expected):
    """A changed default changes every run that doesn't set it: change this line too, and say so in the changelog."""
    assert repr(cls()) == expected


@pytest.mark.parametrize("cls", [c for c in PIECES if "ddof" in c.__dataclass_fields__], ids=lambda c: c.__name__)
def test_ddof_is_zero_or_one(cls):
    assert cls(ddof=0).ddof == 0 and cls(ddof=1).ddof == 1
    for ddof in (-1, 2):
        with pytest.raises(ValueError, match=f"{cls.__name__}.ddof={ddof}: must be 0 or 1"):
            cls(ddof=ddof)

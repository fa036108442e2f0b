"""The convention card (specs/peers.md §§2.3, 2.7, 2.10): what a loss of that name means in each framework."""

import pytest

import coterie.algos as algos

NO_BOUND = {"log_ratio_bound": 0.0}
SUM = {"bypass": True, "aggregate": "token_sum"}
CARD = {
    "PPOClip": {
        "verl": {"dual_clip": 3.0},
        "trl": NO_BOUND
        | {"kl_clamp": "none", "correction": "sequence_mis", "correction_low": 0.0, "correction_high": 3.0},
        "openrlhf": {"kl_clamp": "all"},
        "skyrl": {"kl": "k3", "kl_coef": 0.001},
        "slime": NO_BOUND | {"aggregate": "sequence_mean"},
        "nemo_rl": {"kl": "k3", "kl_coef": 0.01},
        "areal": {},
    },
    "Reinforce": {
        "verl_bypass": {"bypass": True, "correction": "token_tis"},
        "skyrl_rollout_is": {"bypass": True, "correction": "token_mis"},
    },
    "ImportanceSampling": {"tinker": SUM, "skyrl": SUM},
    "CISPO": {
        "verl": {"clip_low": 0.2, "clip_high": 0.2},
        "trl": NO_BOUND | {"clip_low": 1.0, "clip_high": 4.0},
        "skyrl": {"clip_low": 1.0, "clip_high": 4.0},
        "slime": NO_BOUND | {"clip_low": 0.2, "clip_high": 0.2},
        "areal": {"clip_low": 0.2, "clip_high": 0.2},
        "tinker": SUM | {"clip_low": 1.0, "clip_high": 3.0},
    },
    "SAPO": {"verl": {"aggregate": "sequence_mean"}, "trl": NO_BOUND | {"aggregate": "sequence_mean"}},
    "DPPO": {
        "verl": {},
        "skyrl": {"bypass": True, "ratio_cap": 1e9},
        "prime_rl": {"bypass": True, "ratio_cap": 1e9, "drift_coef": 1e-3},
    },
    "TOPR": {"roll": {"level": "token", "positive_by": "reward"}},
    "DRO": {"verl": {}, "tinker": SUM},
    "GSPO": {
        "verl": {"form": "token", "log_ratio_bound": 10.0},
        "skyrl": {"form": "token", "log_ratio_bound": 10.0},
        "trl": NO_BOUND,
        "openrlhf": {},
        "nemo_rl": {},
        "slime": NO_BOUND,
        "areal": {"mean_advantage": True},
    },
    "LUSPO": {"trl": NO_BOUND},
    "GMPO": {"verl": NO_BOUND | {"clip_low": 0.2, "clip_high": 0.2}},
    "VESPO": {"trl": {"bypass": True}},
    "ClipCov": {"verl": NO_BOUND, "skyrl": NO_BOUND},
    "KLCov": {
        "verl": NO_BOUND | {"share": 2e-4, "penalty": 0.1},
        "skyrl": NO_BOUND | {"share": 0.2, "penalty": 1.0},
    },
    "SFTLoss": {"cs336": {"aggregate": "sequence_sum"}},
    "ValueLoss": {"verl": {"clip": 0.5}, "openrlhf": {"clip": 0.2}, "areal": {"huber": 10.0}},
    "DPO": {"trl": {}, "openrlhf": {}, "tulu3": {"length_normalize": True, "beta": 5.0}},
    "IPO": {
        "trl": {"length_normalize": True},
        "areal": {"length_normalize": True},
        "openrlhf": {"length_normalize": False},
    },
    "SimPO": {"trl": {"gamma": 0.5, "beta": 0.1}},
    "AlphaPO": {"trl": {"gamma": 0.5, "beta": 0.1}},
}
DEFAULTS = {
    "PPOClip": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 0.0, "delta": 0.0, "aggregate": "token_mean"},
    "CISPO": {"clip_low": 1.0, "clip_high": 4.0},
    "SAPO": {"tau_positive": 1.0, "tau_negative": 1.05},
    "DPPO": {"clip_low": 0.2, "clip_high": 0.2, "divergence": "tv", "ratio_cap": 20.0, "drift_coef": 0.0},
    "TOPR": {"positive_by": "advantage", "level": "sequence"},
    "GSPO": {"clip_low": 3e-4, "clip_high": 4e-4, "form": "sequence", "aggregate": "sequence_mean"},
    "GMPO": {"clip_low": 0.4, "clip_high": 0.4},
    "VESPO": {"k_positive": 2.0, "lam_positive": 3.0, "k_negative": 3.0, "lam_negative": 2.0},
    "ClipCov": {"share": 2e-4, "cov_low": 1.0, "cov_high": 5.0, "seed": 0},
    "KLCov": {"share": 2e-4, "penalty": 1.0},
    "KTO": {"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0, "reference_point": "kl"},
    "EXO": {"beta": 0.1, "label_smoothing": 1e-3},
    "DiscoPOP": {"tau": 0.05},
    "ORPO": {"sft_coef": 1.0},
    "CPO": {"sft_coef": 1.0},
    "SimPO": {"beta": 2.0, "gamma": 1.0},
    "AlphaPO": {"alpha": 0.25},
    "ImplicitPRM": {"beta": 0.05},
    "ValueLoss": {"clip": 0.5, "huber": 0.0},
}


@pytest.mark.parametrize("name", CARD)
def test_conventions_are_those_of_the_card(name):
    assert dict(getattr(algos, name).conventions) == CARD[name]


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_paper_or_of_most_frameworks(name):
    loss = getattr(algos, name)()
    assert {field: getattr(loss, field) for field in DEFAULTS[name]} == DEFAULTS[name]


def test_every_policy_loss_has_the_same_common_defaults():
    common = {
        "fixed_length": 0,
        "denominator": "all",
        "kl": "none",
        "kl_coef": 0.0,
        "kl_clamp": "k3",
        "kl_unbiased": False,
        "entropy_coef": 0.0,
        "top_entropy": 1.0,
        "positive_nll_coef": 0.0,
        "log_ratio_bound": 20.0,
        "controlled": (),
        "correction": "none",
        "correction_normalize": False,
        "rejection": "none",
        "veto": 0.0,
        "opsm_delta": 0.0,
        "bypass": False,
    }
    for name in algos.__all__:
        cls = getattr(algos, name)
        if isinstance(cls, type) and issubclass(cls, algos.PolicyLoss):
            loss = cls()
            assert {field: getattr(loss, field) for field in common} == common

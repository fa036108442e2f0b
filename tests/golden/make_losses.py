"""Makes losses.json: inputs, and the float64 loss and gradient of every loss from the naive loops beside this file.

Run `python tests/golden/make_losses.py` after changing a loop; a test compares the file with what the loops give.
"""

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import naive_policy as policy
import naive_preference as preference

SURROGATES = {
    "PPOClip": policy.ppo_clip,
    "Reinforce": policy.reinforce,
    "GPGLoss": policy.reinforce,
    "ImportanceSampling": policy.importance_sampling,
    "CISPO": policy.cispo,
    "SAPO": policy.sapo,
    "DPPO": policy.dppo,
    "TOPR": policy.topr,
    "DRO": policy.dro,
    "GSPO": policy.gspo,
    "LUSPO": policy.gspo,
    "GMPO": policy.gmpo,
    "VESPO": policy.vespo,
    "KLCov": policy.kl_cov,
    "ClipCov": policy.clip_cov,
    "SFTLoss": policy.nll,
    "DFTLoss": policy.dft,
}
DEFAULTS = {
    "GSPO": {"aggregate": "sequence_mean"},
    "GMPO": {"aggregate": "sequence_mean"},
    "LUSPO": {"aggregate": "sequence_sum"},
}
LENGTHS = [4, 1, 3, 2, 6, 0, 5, 2, 3, 4]
GROUPS = [0, 0, 1, 1, 2, 2, 3, 3, 3, 4]
REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, -1.0, 0.5, 0.0, -0.5, 1.0]
WIDE = {"clip_low": 0.1, "clip_high": 0.15}
POLICY_CASES = [
    ("PPOClip", {}),
    ("PPOClip", {"clip_low": 0.1, "clip_high": 0.4}),
    ("PPOClip", {"dual_clip": 1.2}),
    ("PPOClip", {"delta": 1.3}),
    *[("PPOClip", {"aggregate": a}) for a in ("sequence_mean", "sequence_sum", "prompt_mean", "token_sum")],
    ("PPOClip", {"aggregate": "fixed_length", "fixed_length": 7}),
    *[("PPOClip", {"kl": k, "kl_coef": 0.3}) for k in ("k1", "k2", "k3", "abs", "k1+", "k3+")],
    ("PPOClip", {"kl": "k3", "kl_coef": 0.3, "kl_unbiased": True, "kl_clamp": "none"}),
    ("PPOClip", {"kl": "k2", "kl_coef": 0.3, "kl_clamp": "all", "aggregate": "sequence_mean"}),
    ("PPOClip", {"entropy_coef": 0.05, "aggregate": "prompt_mean"}),
    ("PPOClip", {"top_entropy": 0.4, "kl": "k3", "kl_coef": 0.2}),
    ("PPOClip", {"positive_nll_coef": 0.1}),
    ("PPOClip", {"bypass": True}),
    ("PPOClip", {"log_ratio_bound": 0.1}),
    *[("PPOClip", {"correction": c}) for c in ("token_tis", "sequence_tis", "geometric_tis")],
    *[("PPOClip", {"correction": c}) for c in ("token_mis", "icepop", "sequence_mis")],
    ("PPOClip", {"correction": "geometric_mis", "correction_low": 0.9, "correction_high": 1.2}),
    ("PPOClip", {"correction": "token_tis", "correction_low": 0.8, "correction_high": 1.3}),
    ("PPOClip", {"correction": "token_tis", "correction_normalize": True}),
    ("PPOClip", {"correction": "sequence_tis", "correction_normalize": True, "correction_high": 1.5}),
    ("PPOClip", {"correction": "token_tis", "correction_high": 1e9, "rejection": "geometric", "rejection_low": 0.9,
                 "rejection_high": 1.2}),
    ("PPOClip", {"rejection": "token", "rejection_low": 0.8, "rejection_high": 1.5}),
    ("PPOClip", {"rejection": "sequence", "rejection_low": 0.4, "rejection_high": 1.7}),
    ("PPOClip", {"rejection": "geometric", "rejection_low": 0.9, "rejection_high": 1.2}),
    ("PPOClip", {"rejection": "outlier", "rejection_low": 0.4, "rejection_high": 3.0}),
    ("PPOClip", {"rejection": "token_k2"}),
    ("PPOClip", {"rejection": "token_k3", "rejection_high": 0.2}),
    *[("PPOClip", {"rejection": f"sequence_{r}_{k}", "rejection_high": h})
      for r, h in (("sum", 0.6), ("mean", 0.15), ("max", 0.5)) for k in ("k2", "k3")],
    ("PPOClip", {"rejection": "kpop", "rejection_high": 0.05}),
    ("PPOClip", {"rejection": "m2po", "rejection_high": 0.06}),
    ("PPOClip", {"veto": 0.7}),
    ("PPOClip", {"opsm_delta": 0.1}),
    *[("PPOClip", {"rejection": "token", "rejection_low": 0.8, "rejection_high": 1.5, "denominator": "kept",
                   "aggregate": a, "kl": "k3", "kl_coef": 0.1, "entropy_coef": 0.01})
      for a in ("token_mean", "sequence_mean", "sequence_sum", "prompt_mean")],
    ("Reinforce", {}),
    ("Reinforce", {"bypass": True, "correction": "token_tis"}),
    ("Reinforce", {"correction": "sequence_mis", "correction_high": 1.7}),
    ("GPGLoss", {}),
    ("ImportanceSampling", {}),
    ("ImportanceSampling", {"bypass": True, "aggregate": "token_sum"}),
    ("CISPO", {}),
    ("CISPO", {"clip_low": 0.2, "clip_high": 0.2}),
    ("SAPO", {}),
    ("SAPO", {"tau_positive": 2.0, "tau_negative": 3.0, "aggregate": "sequence_mean"}),
    ("DPPO", {"clip_low": 0.02, "clip_high": 0.03}),
    ("DPPO", {"divergence": "kl", "clip_low": 0.01, "clip_high": 0.02}),
    ("DPPO", {"bypass": True, "drift_coef": 0.01, "ratio_cap": 1.1}),
    ("TOPR", {}),
    ("TOPR", {"level": "token", "positive_by": "reward"}),
    ("DRO", {"beta": 0.3}),
    *[("GSPO", {**WIDE, "form": form}) for form in ("sequence", "token")],
    ("GSPO", {**WIDE, "mean_advantage": True}),
    ("GSPO", {**WIDE, "rejection": "token", "rejection_low": 0.8, "rejection_high": 1.5}),
    ("LUSPO", WIDE),
    ("GMPO", {"clip_low": 0.1, "clip_high": 0.2}),
    ("GMPO", {"correction": "token_tis"}),
    ("VESPO", {}),
    ("KLCov", {"share": 0.2}),
    ("KLCov", {"share": 1e-4, "penalty": 0.1}),
    ("ClipCov", {"share": 1.0, "cov_low": 0.05, "cov_high": 0.6}),
    ("SFTLoss", {}),
    ("SFTLoss", {"aggregate": "sequence_sum"}),
    ("DFTLoss", {}),
]  # fmt: skip
ON_POLICY_CASES = [
    ("PPOClip", {"kl": "k3", "kl_coef": 0.1}),
    ("PPOClip", {"correction": "token_tis"}),
    ("CISPO", {}),
    ("SAPO", {}),
    ("DPPO", {}),
    ("TOPR", {}),
    ("DRO", {}),
    ("GSPO", {}),
    ("LUSPO", {}),
    ("GMPO", {}),
    ("VESPO", {}),
    ("KLCov", {}),
]
PAIR_LOSSES = {
    "DPO": preference.dpo,
    "RobustDPO": preference.robust,
    "HingeDPO": preference.hinge,
    "IPO": preference.ipo,
    "EXO": preference.exo,
    "DiscoPOP": preference.discopop,
    "NCA": preference.nca,
    "BCO": preference.bco,
    "SPPO": preference.sppo,
    "APOZero": preference.apo_zero,
    "APODown": preference.apo_down,
    "ORPO": preference.orpo,
    "CPO": preference.cpo,
    "SimPO": preference.simpo,
    "AlphaPO": preference.alphapo,
    "AOT": preference.aot,
    "AOTUnpaired": preference.aot_unpaired,
}
PAIR_CASES = [
    ("DPO", {"beta": 0.3}),
    ("DPO", {"beta": 0.3, "label_smoothing": 0.1}),
    ("DPO", {"beta": 0.3, "length_normalize": True}),
    ("DPO", {"beta": 0.3, "tail_weight": 0.5}),
    ("DPO", {"beta": 0.3, "weighted": True}),
    ("DPO", {"beta": 0.3, "sft_coef": 0.2}),
    *[("DPO", {"beta": 0.3, "divergence": d}) for d in ("forward_kl", "js", "alpha")],
    ("RobustDPO", {"beta": 0.3, "label_smoothing": 0.2}),
    ("HingeDPO", {"beta": 0.7}),
    ("IPO", {"beta": 0.3}),
    ("IPO", {"beta": 0.3, "length_normalize": False}),
    ("EXO", {"beta": 0.3, "label_smoothing": 0.01}),
    ("DiscoPOP", {"beta": 0.3}),
    ("NCA", {"beta": 0.3}),
    ("BCO", {"beta": 0.3}),
    ("SPPO", {"beta": 0.3}),
    ("APOZero", {"beta": 0.3}),
    ("APODown", {"beta": 0.3}),
    ("ORPO", {"beta": 0.3, "sft_coef": 1.0}),
    ("CPO", {"beta": 0.3, "sft_coef": 1.0, "label_smoothing": 0.1}),
    ("SimPO", {"beta": 2.0, "gamma": 0.7}),
    ("AlphaPO", {"beta": 2.0, "gamma": 0.7, "alpha": 0.4}),
    ("AOT", {"beta": 0.3}),
    ("AOTUnpaired", {"beta": 0.3, "label_smoothing": 0.1}),
]
LABELLED_CASES = [
    ("KTO", preference.whole_kto, {"beta": 0.3}),
    ("KTO", preference.whole_kto, {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.7}),
    ("KTO", preference.whole_kto, {"beta": 0.3, "reference_point": "zero"}),
    ("ImplicitPRM", preference.whole_implicit_prm, {"beta": 0.2}),
    ("BradleyTerry", preference.whole_bradley_terry, {}),
    ("BradleyTerry", preference.whole_bradley_terry, {"margin": 0.5, "centre_coef": 0.01}),
    ("ValueLoss", preference.whole_value, {"clip": 0.2}),
    ("ValueLoss", preference.whole_value, {"clip": 0.0}),
    ("ValueLoss", preference.whole_value, {"clip": 0.3, "huber": 0.4}),
]


def data(seed, lengths, groups, rewards):
    """Random streams for sequences of these lengths."""
    draw = random.Random(seed)
    total = sum(lengths)
    logprobs = [-draw.uniform(0.05, 2.5) for _ in range(total)]

    def near(values, width):
        return [min(v + draw.gauss(0, width), -0.01) for v in values]

    old = near(logprobs, 0.3)
    return {
        "lengths": lengths,
        "sequence": [s for s, n in enumerate(lengths) for _ in range(n)],
        "group": groups,
        "rewards": rewards,
        "logprobs": logprobs,
        "old": old,
        "sampler": near(old, 0.7),
        "ref": near(logprobs, 0.6),
        "advantages": [draw.gauss(0, 1) for _ in range(total)],
        "entropy": [draw.uniform(0, 2) for _ in range(total)],
        "squares": [draw.uniform(0.05, 0.9) for _ in range(total)],
        "old_values": [draw.gauss(0, 1) for _ in range(total)],
        "returns": [draw.gauss(0, 1) for _ in range(total)],
    }


def case(name, fields, inputs, function, on_policy=False):
    """One entry: fields in, loss and gradient out."""
    logprobs = inputs["logprobs"]
    return {
        "class": name,
        "fields": fields,
        "on_policy": on_policy,
        "loss": function(logprobs),
        "gradient": policy.gradient(function, logprobs),
    }


def policy_cases(inputs):
    out = []
    for names, on_policy in ((POLICY_CASES, False), (ON_POLICY_CASES, True)):
        d = {k: v for k, v in inputs.items() if k != "old"} if on_policy else inputs
        for name, fields in names:
            f = {**DEFAULTS.get(name, {}), **fields}

            def function(lp, name=name, f=f, d=d):
                return policy.whole_loss(SURROGATES[name], d, lp, inputs["logprobs"], f)

            out.append(case(name, fields, inputs, function, on_policy))
    return out


def preference_cases(pairs, labelled):
    out = []
    for name, fields in PAIR_CASES:

        def pairwise(lp, name=name, fields=fields):
            return preference.whole_pairwise(PAIR_LOSSES[name], pairs, lp, pairs["logprobs"], fields)

        out.append(case(name, fields, pairs, pairwise))
    for name, whole, fields in LABELLED_CASES:
        d = labelled if name == "KTO" and fields.get("reference_point") != "zero" else pairs

        def single(lp, whole=whole, fields=fields, d=d):
            return whole(d, lp, d["logprobs"], fields)

        out.append(case(name, fields, d, single) | {"inputs": "labelled" if d is labelled else "pairs"})
    return out


def make():
    """Everything that losses.json holds."""
    inputs = data(171, LENGTHS, GROUPS, REWARDS)
    pairs = data(11, [3, 2, 4, 4, 2, 5], [0, 0, 1, 1, 2, 2], [1.0, 0.0, 0.0, 1.0, 2.0, -1.0])
    labelled = data(13, [3, 2, 4, 4, 2, 5], [0, 1, 2, 3, 4, 5], [1.0, 0.0, None, 1.0, 0.0, None])
    return {
        "inputs": inputs,
        "pairs": pairs,
        "labelled": labelled,
        "policy": policy_cases(inputs),
        "preference": preference_cases(pairs, labelled),
    }


if __name__ == "__main__":
    path = Path(__file__).with_name("losses.json")
    path.write_text(json.dumps(make(), separators=(",", ":")) + "\n")

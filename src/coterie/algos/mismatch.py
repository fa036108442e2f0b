"""How far the sampler's logprobs are from the trainer's: always logged, because nothing else shows a broken engine."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coterie.algos.aggregate import segment_mean, segment_sum
from coterie.algos.corrections import LOG_WEIGHT_BOUND
from coterie.algos.loss_metrics import maxima, means, minima
from coterie.core.metrics import Stat, total


def mismatch_metrics(
    proximal: Float[Tensor, "A"], sampler: Float[Tensor, "A"], sequence_id: Int[Tensor, "A"], num_sequences: int
) -> dict[str, Stat]:
    """Mergeable statistics of d = proximal - sampler (w = exp d), over tokens where both are finite.

    kl/sampler_k1 = mean(-d), kl/sampler_k3 = mean(exp(d) - d - 1), kl/sampler_abs_diff = mean |d|; under `mismatch/`:
    weight_mean, weight_square_mean, weight_max, weight_min, chi2_token, chi2_sequence, token_mult_prob_error
    (mean exp |d|), log_ppl_diff_*, ppl_ratio and the two perplexities (per sequence), nonfinite_tokens. `derived` adds
    what is no mean (effective sample size, standard deviation) after merging.
    """
    proximal, sampler = proximal.detach(), sampler.detach()
    finite = torch.isfinite(proximal) & torch.isfinite(sampler)
    proximal, sampler, sequence_id = proximal[finite], sampler[finite], sequence_id[finite]
    difference = (proximal - sampler).clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    weight = difference.exp()
    used = torch.bincount(sequence_id, minlength=num_sequences) > 0
    log_ppl = -segment_mean(proximal, sequence_id, num_sequences)[used]
    sampler_log_ppl = -segment_mean(sampler, sequence_id, num_sequences)[used]
    sums = segment_sum(difference, sequence_id, num_sequences)[used].clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
    gap = log_ppl - sampler_log_ppl
    out = means(
        {
            "kl/sampler_k1": -difference,
            "kl/sampler_k3": torch.expm1(difference) - difference,
            "kl/sampler_abs_diff": difference.abs(),
            "mismatch/weight_mean": weight,
            "mismatch/weight_square_mean": weight.square(),
            "mismatch/chi2_token": weight.square() - 1,
            "mismatch/chi2_sequence": (2 * sums).exp() - 1,
            "mismatch/token_mult_prob_error": difference.abs().exp(),
            "mismatch/policy_ppl": log_ppl.exp(),
            "mismatch/sampler_ppl": sampler_log_ppl.exp(),
            "mismatch/log_ppl_diff_mean": gap,
            "mismatch/log_ppl_diff_abs": gap.abs(),
            "mismatch/ppl_ratio": gap.exp(),
        }
    )
    out |= maxima({"mismatch/weight_max": weight, "mismatch/log_ppl_diff_max": gap})
    out |= minima({"mismatch/weight_min": weight, "mismatch/log_ppl_diff_min": gap})
    out["mismatch/nonfinite_tokens"] = total(len(finite) - len(weight))
    return out


def derived(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers that are no means, from merged ones: `mismatch/ess` (in (0, 1]) and `mismatch/weight_std`.

    ess = mean(w)^2 / mean(w^2) = 1 / mean((w / mean w)^2).
    """
    first, second = values.get("mismatch/weight_mean"), values.get("mismatch/weight_square_mean")
    if first is None or second is None or not second > 0:
        return {}
    return {"mismatch/ess": first * first / second, "mismatch/weight_std": math.sqrt(max(second - first * first, 0.0))}


def effective_sample_size(weights: Float[Tensor, "A"]) -> float:
    """1 / mean((w / mean w)^2): 1 for equal weights, 1 / A when one token has all the weight."""
    normalised = weights.detach() / weights.detach().mean()
    return float(1.0 / normalised.square().mean())

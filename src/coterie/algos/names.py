"""The public names of `coterie.algos` and the module each lives in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_PUBLIC = {
    "advantages": "GRPO RLOO DrGRPO grpo_advantages rloo_advantages",
    "advantages_dense": "PRIME KLAdvantage MiniLLM OnPolicyDistillation",
    "advantages_group": "GPG OPO MaxRL PassAtK maxrl_advantages opo_advantages pass_at_k_advantages",
    "advantages_multi": "GDPO Classmate",
    "advantages_tokens": "OTB ReMax ReinforcePlusPlus ReinforcePlusPlusBaseline otb_advantages",
    "advantages_turns": "GiGPO",
    "aggregate": "aggregated segment_mean segment_sum token_weights",
    "coefs": "AdaptiveEntropy AdaptiveKL Fixed",
    "corrections": "importance_weights kept_by",
    "covariance_losses": "ClipCov KLCov",
    "critic": "ValueLoss explained_variance value_loss",
    "distill": "generalised_jsd kl_divergence topk_forward_kl",
    "filters": "DropConstant DropMissing DropTruncated KeepGroups SolveRate Truncated",
    "gae": "GAE gae_advantages",
    "kl": "kl_estimate",
    "labelled_losses": "KTO BradleyTerry ImplicitPRM",
    "losses": "DFTLoss GPGLoss ImportanceSampling PPOClip Reinforce SFTLoss",
    "mismatch": "effective_sample_size mismatch_metrics",
    "pairs": "PreferenceLoss",
    "policy_loss": "ActionTokens PolicyLoss",
    "preference": (
        "alphapo_reward apo_down apo_zero bco bradley_terry cpo discopop divergence_score dpo exo hinge ipo kto nca "
        "orpo robust_dpo simpo sppo"
    ),
    "preference_losses": "APODown APOZero BCO DPO EXO HingeDPO IPO NCA RobustDPO SPPO DiscoPOP",
    "reference_free": "CPO ORPO AlphaPO SimPO",
    "replay": "DifficultyPools Replay",
    "sampling": "PFPPO DynamicSampling ReplaceConstant",
    "sequence_losses": "GMPO GSPO LUSPO VESPO",
    "sequence_surrogates": "gmpo gspo",
    "shaping": "KLReward LengthPenalty OverlongPenalty ScaleReward StopProperly",
    "surrogates": "cispo dppo dro importance_sampling ppo_clip reinforce sapo topr",
    "token_losses": "CISPO DPPO DRO SAPO TOPR",
    "transforms": "BatchWhitening ClipAdvantages OnlySpan ScaleSpan Whiten",
    "transport_losses": "AOT AOTUnpaired",
}

HOME: Mapping[str, str] = MappingProxyType({name: module for module, text in _PUBLIC.items() for name in text.split()})
"""Public name to the module of `coterie.algos` that defines it."""

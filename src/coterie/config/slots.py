"""Which names a slot takes. A choice is a dotted place, imported when it is chosen; to add one, add a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["settings", "call", "controller"]


@dataclass(frozen=True)
class Slot:
    """A place in a run that one of several pieces fills.

    Attributes:
        name: key of the configuration.
        doc: what fills it, one line.
        choices: short name to `module:Class`.
        kind: "settings" for a plain section of settings, "call" for something called in the loop, "controller" for a
            coefficient with `init`, `update` and `value`.
        arguments: names of the positional arguments of the call, for the contract of a piece loaded from a file.
        many: takes an ordered list of choices.
        optional: takes `none`.
        attributes: what a class loaded from a file need not declare, and the value it then has.
        wrapper: `module:Class` that makes a piece of a function of another form, given `path`, `name` and `kwargs`.
        wrapped_arguments: what such a function is called with.
        files: choice to those of its settings that name a file: kept as absolute paths, and counted by content.
    """

    name: str
    doc: str
    choices: Mapping[str, str]
    kind: Kind = "call"
    arguments: tuple[str, ...] = ("groups",)
    many: bool = False
    optional: bool = False
    attributes: Mapping[str, Any] = field(default_factory=lambda: {"needs": frozenset()})
    wrapper: str = ""
    wrapped_arguments: tuple[str, ...] = ()
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_LEARNERS = {"local": "coterie.config.schema:LocalLearnerConfig"}

_ENGINES = {"transformers": "coterie.config.schema:TransformersEngineConfig"}

_REWARDS = {
    "math": "coterie.rewards.answers:MathReward",
    "function": "coterie.rewards.functions:FunctionReward",
    "gym": "coterie.rewards.gym:GymReward",
}

_ADVANTAGES = {
    "grpo": "coterie.algos.advantages:GRPO",
    "dr_grpo": "coterie.algos.advantages:DrGRPO",
    "rloo": "coterie.algos.advantages:RLOO",
    "opo": "coterie.algos.advantages_group:OPO",
    "gpg": "coterie.algos.advantages_group:GPG",
    "pass_at_k": "coterie.algos.advantages_group:PassAtK",
    "maxrl": "coterie.algos.advantages_group:MaxRL",
    "reinforce_pp": "coterie.algos.advantages_tokens:ReinforcePlusPlus",
    "reinforce_pp_baseline": "coterie.algos.advantages_tokens:ReinforcePlusPlusBaseline",
    "otb": "coterie.algos.advantages_tokens:OTB",
    "gdpo": "coterie.algos.advantages_multi:GDPO",
    "classmate": "coterie.algos.advantages_multi:Classmate",
    "gae": "coterie.algos.gae:GAE",
}

_LOSSES = {
    "ppo_clip": "coterie.algos.losses:PPOClip",
    "reinforce": "coterie.algos.losses:Reinforce",
    "gpg": "coterie.algos.losses:GPGLoss",
    "importance_sampling": "coterie.algos.losses:ImportanceSampling",
    "gspo": "coterie.algos.sequence_losses:GSPO",
    "luspo": "coterie.algos.sequence_losses:LUSPO",
    "gmpo": "coterie.algos.sequence_losses:GMPO",
    "vespo": "coterie.algos.sequence_losses:VESPO",
    "cispo": "coterie.algos.token_losses:CISPO",
    "sapo": "coterie.algos.token_losses:SAPO",
    "dppo": "coterie.algos.token_losses:DPPO",
    "topr": "coterie.algos.token_losses:TOPR",
    "dro": "coterie.algos.token_losses:DRO",
    "clip_cov": "coterie.algos.covariance_losses:ClipCov",
    "kl_cov": "coterie.algos.covariance_losses:KLCov",
    "nll": "coterie.algos.losses:SFTLoss",
    "dft": "coterie.algos.losses:DFTLoss",
    "dpo": "coterie.algos.preference_losses:DPO",
    "robust_dpo": "coterie.algos.preference_losses:RobustDPO",
    "hinge": "coterie.algos.preference_losses:HingeDPO",
    "ipo": "coterie.algos.preference_losses:IPO",
    "exo": "coterie.algos.preference_losses:EXO",
    "discopop": "coterie.algos.preference_losses:DiscoPOP",
    "nca": "coterie.algos.preference_losses:NCA",
    "bco": "coterie.algos.preference_losses:BCO",
    "sppo": "coterie.algos.preference_losses:SPPO",
    "apo_zero": "coterie.algos.preference_losses:APOZero",
    "apo_down": "coterie.algos.preference_losses:APODown",
    "aot": "coterie.algos.transport_losses:AOT",
    "aot_unpaired": "coterie.algos.transport_losses:AOTUnpaired",
    "orpo": "coterie.algos.reference_free:ORPO",
    "cpo": "coterie.algos.reference_free:CPO",
    "simpo": "coterie.algos.reference_free:SimPO",
    "alphapo": "coterie.algos.reference_free:AlphaPO",
    "kto": "coterie.algos.labelled_losses:KTO",
    "bradley_terry": "coterie.algos.labelled_losses:BradleyTerry",
}

_FILTERS = {
    "constant": "coterie.algos.filters:DropConstant",
    "truncated": "coterie.algos.filters:DropTruncated",
    "missing": "coterie.algos.filters:DropMissing",
    "solve_rate": "coterie.algos.filters:SolveRate",
    "keep_groups": "coterie.algos.filters:KeepGroups",
}

_SHAPING = {
    "kl": "coterie.algos.shaping:KLReward",
    "overlong": "coterie.algos.shaping:OverlongPenalty",
    "stop_properly": "coterie.algos.shaping:StopProperly",
    "length": "coterie.algos.shaping:LengthPenalty",
    "scale": "coterie.algos.shaping:ScaleReward",
    "truncated": "coterie.algos.filters:Truncated",
}

_TRANSFORMS = {
    "whiten": "coterie.algos.transforms:Whiten",
    "clip": "coterie.algos.transforms:ClipAdvantages",
    "scale_span": "coterie.algos.transforms:ScaleSpan",
    "only_span": "coterie.algos.transforms:OnlySpan",
    "truncated": "coterie.algos.filters:Truncated",
    "kl": "coterie.algos.advantages_dense:KLAdvantage",
}

_ENTROPY_CONTROLS = {"skywork": "coterie.algos.coefs:AdaptiveEntropy"}

_KL_CONTROLS = {
    "adaptive": "coterie.algos.coefs:AdaptiveKL",
    "fixed": "coterie.algos.coefs:Fixed",
}


def _control(name: str, doc: str, choices: Mapping[str, str]) -> Slot:
    return Slot(name, doc, choices, "controller", (), optional=True, attributes={})


def _slots(*slots: Slot) -> Mapping[str, Slot]:
    return MappingProxyType({slot.name: slot for slot in slots})


SLOTS: Mapping[str, Slot] = _slots(
    Slot("learner", "what holds weights and optimizer", _LEARNERS, "settings", (), attributes={}),
    Slot("engine", "what samples completions", _ENGINES, "settings", (), attributes={}),
    Slot(
        "reward",
        "what scores a group; asynchronous: (group, context) -> group",
        _REWARDS,
        arguments=("group", "context"),
        attributes={"writes": frozenset({"reward"})},
        wrapper="coterie.rewards.functions:FunctionReward",
        wrapped_arguments=("data_source", "solution_str", "ground_truth", "extra_info"),
        files={"function": ("path",)},
    ),
    Slot("filters", "which groups and rollouts are left out, in this order", _FILTERS, many=True),
    Slot("shaping", "what changes scores before the advantage (KL in the reward), in this order", _SHAPING, many=True),
    Slot(
        "advantage",
        "the estimator: groups -> groups with advantages",
        _ADVANTAGES,
        attributes={"needs": frozenset({"score:reward"})},
    ),
    Slot("transforms", "what changes advantages afterwards, in this order", _TRANSFORMS, many=True),
    Slot(
        "loss",
        "what is minimised: (outputs, batch) -> LossOutput",
        _LOSSES,
        arguments=("outputs", "batch"),
        attributes={"needs": frozenset(), "wants": frozenset()},
    ),
    _control("entropy_control", "controller of the entropy coefficient", _ENTROPY_CONTROLS),
    _control("kl_control", "controller of the KL coefficient", _KL_CONTROLS),
)
"""Every slot, in the order in which a step uses them."""

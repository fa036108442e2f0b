"""Documented names of verl's PPO configuration in coterie's words, where they mean the same.

Source: verl 0.6-0.9, `trainer/config/ppo_trainer.yaml`, and the launch scripts of the projects built on it.
`coterie check --from-verl` prints the translation; nothing else reads these names.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import yaml  # type: ignore[import-untyped]

from coterie.config.hints import nearest
from coterie.config.pieces import find_piece
from coterie.config.slots import SLOTS

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "data.train_files": "data.path",
        "data.val_files": "eval.data.path",
        "data.train_batch_size": "train.prompts_per_step",
        "data.max_prompt_length": "data.max_prompt_tokens",
        "data.max_response_length": "rollout.max_tokens",
        "data.prompt_key": "data.prompt_key",
        "data.shuffle": "data.shuffle",
        "data.seed": "run.seed",
        "data.train_max_samples": "data.max_examples",
        "data.val_max_samples": "eval.max_examples",
        "actor_rollout_ref.model.path": "model",
        "actor_rollout_ref.model.trust_remote_code": "model_kwargs.trust_remote_code",
        "actor_rollout_ref.model.enable_gradient_checkpointing": "learner.gradient_checkpointing",
        f"{ACTOR}.optim.lr": "optim.lr",
        f"{ACTOR}.optim.weight_decay": "optim.weight_decay",
        f"{ACTOR}.optim.min_lr_ratio": "optim.min_lr_ratio",
        f"{ACTOR}.grad_clip": "optim.max_grad_norm",
        f"{ACTOR}.ppo_epochs": "train.epochs",
        f"{ACTOR}.ppo_max_token_len_per_gpu": "learner.micro_batch_tokens",
        f"{ACTOR}.clip_ratio_low": "loss.clip_low",
        f"{ACTOR}.clip_ratio_high": "loss.clip_high",
        f"{ACTOR}.clip_ratio_c": "loss.dual_clip",
        f"{ACTOR}.entropy_coeff": "loss.entropy_coef",
        f"{ACTOR}.kl_loss_coef": "loss.kl_coef",
        f"{ROLLOUT}.n": "rollout.n",
        f"{ROLLOUT}.temperature": "rollout.temperature",
        f"{ROLLOUT}.top_p": "rollout.top_p",
        f"{ROLLOUT}.val_kwargs.n": "eval.n",
        f"{ROLLOUT}.val_kwargs.temperature": "eval.temperature",
        f"{ROLLOUT}.val_kwargs.top_p": "eval.top_p",
        "algorithm.kl_ctrl.kl_coef": "shaping.kl.coef",
        "algorithm.kl_ctrl.target_kl": "kl_control.target",
        "algorithm.kl_ctrl.horizon": "kl_control.horizon",
        "algorithm.gamma": "advantage.gamma",
        "algorithm.lam": "advantage.lam",
        "custom_reward_function.path": "reward.path",
        "custom_reward_function.name": "reward.name",
        "trainer.total_training_steps": "train.steps",
        "trainer.max_actor_ckpt_to_keep": "train.keep",
        "trainer.default_local_dir": "run.dir",
        "trainer.project_name": "log.project",
        "trainer.experiment_name": "log.name",
    }
)
"""Names that mean the same with the same values."""

ALWAYS = "always so here"
OWN = "chosen by the engine or learner; see `coterie check` for memory"
NO_NEED: Mapping[str, str] = MappingProxyType(
    {
        "data.filter_overlong_prompts": "always so here, and counted",
        "data.truncation": "prompts are never cut; longer ones are left out and counted",
        "data.return_raw_chat": ALWAYS,
        "data.reward_fn_key": "a reward sees the row's data_source",
        "data.val_batch_size": OWN,
        "actor_rollout_ref.model.use_remove_padding": "always so here: batches are flat",
        "actor_rollout_ref.hybrid_engine": ALWAYS,
        f"{ACTOR}.use_dynamic_bsz": "always so here: micro-batches are made by token count",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": "micro-batches are made by token count: learner.micro_batch_tokens",
        f"{ACTOR}.ppo_micro_batch_size": "micro-batches are made by token count: learner.micro_batch_tokens",
        f"{ACTOR}.use_torch_compile": "learner.compile",
        f"{ROLLOUT}.name": "engine=transformers is the one there is",
        f"{ROLLOUT}.gpu_memory_utilization": OWN,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": OWN,
        f"{ROLLOUT}.log_prob_micro_batch_size": OWN,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": OWN,
        "actor_rollout_ref.ref.log_prob_micro_batch_size": OWN,
        "reward_model.enable": "a reward model would be a piece in the reward slot",
        "trainer.critic_warmup": "critic.warmup_steps, with an estimator that needs values (advantage=gae)",
        "trainer.val_before_train": "an evaluation always comes before step 0 when eval.every is set",
        "trainer.n_gpus_per_node": "one process here",
        "trainer.nnodes": "one process here",
        "trainer.balance_batch": ALWAYS,
    }
)
"""Names that are understood and need no setting, and why."""

KL_KINDS = MappingProxyType(
    {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
)
ESTIMATORS = MappingProxyType(
    {
        "grpo": "grpo",
        "rloo": "rloo",
        "reinforce_plus_plus": "reinforce_pp",
        "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
        "opo": "opo",
        "gpg": "gpg",
        "gdpo": "gdpo",
        "grpo_passk": "pass_at_k",
        "gae": "gae",
    }
)
LOSSES = MappingProxyType(
    {"vanilla": "ppo_clip", "gspo": "gspo", "clip_cov": "clip_cov", "kl_cov": "kl_cov", "gpg": "gpg", "cispo": "cispo"}
)
AGGREGATIONS = MappingProxyType(
    {
        "token-mean": "token_mean",
        "seq-mean-token-sum": "sequence_sum",
        "seq-mean-token-mean": "sequence_mean",
        "seq-mean-token-sum-norm": "fixed_length",
    }
)


@dataclass
class Translation:
    """What a verl command line is in coterie's words.

    Attributes:
        overrides: for `coterie train`, in a sensible order.
        notes: names understood that need no setting or an own decision, and why.
        unknown: names not understood.
    """

    overrides: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def texts(self) -> list[str]:
        """The overrides as they are written."""
        return [f"{key}={value}" for key, value in self.overrides.items()]


def from_verl(command: str | Sequence[str]) -> Translation:
    """Translate verl overrides, given as one shell text or as a list.

    A `python -m verl…` in front, line continuations and `+` signs are passed over.
    """
    words = shlex.split(command.replace("\\\n", " ")) if isinstance(command, str) else list(command)
    given = {}
    for word in words:
        key, equal, value = word.lstrip("+").partition("=")
        if equal:
            given[key] = value
    out = Translation()
    for key, value in given.items():
        special = SPECIAL.get(key)
        if special is not None:
            special(out, value, given)
        elif key in RENAMED:
            out.overrides[RENAMED[key]] = _file(value) if key.endswith("_files") else value
        elif key in NO_NEED:
            out.notes[key] = NO_NEED[key]
        elif key.startswith("data.apply_chat_template_kwargs."):
            out.overrides[f"data.chat_template_kwargs.{key.rpartition('.')[2]}"] = value
        else:
            likely = nearest(key, [*RENAMED, *NO_NEED, *SPECIAL], 1)
            out.unknown[key] = f"not understood; the nearest name that is: {likely[0]}"
    _finish(out, given)
    return out


def _estimator(out: Translation, value: str, given: Mapping[str, str]) -> None:
    choice = ESTIMATORS.get(value)
    if choice == "grpo" and _truth(given.get("algorithm.norm_adv_by_std_in_grpo", "True")) is False:
        choice = "dr_grpo"
    if choice is None:
        out.unknown["algorithm.adv_estimator"] = (
            f"{value} has no counterpart among {', '.join(SLOTS['advantage'].choices)}"
        )
    else:
        out.overrides["advantage"] = _with_convention("advantage", choice)


def _loss_mode(out: Translation, value: str, given: Mapping[str, str]) -> None:
    if value in LOSSES:
        out.overrides["loss"] = _with_convention("loss", LOSSES[value])
    else:
        out.unknown[f"{ACTOR}.policy_loss.loss_mode"] = (
            f"{value} has no counterpart among {', '.join(SLOTS['loss'].choices)}"
        )


def _aggregation(out: Translation, value: str, given: Mapping[str, str]) -> None:
    if value not in AGGREGATIONS:
        out.unknown[f"{ACTOR}.loss_agg_mode"] = f"{value}: there are {', '.join(AGGREGATIONS)}"
        return
    out.overrides["loss.aggregate"] = AGGREGATIONS[value]
    if value == "seq-mean-token-sum-norm":
        out.overrides["loss.fixed_length"] = given.get("data.max_response_length", "512")


def _clip(out: Translation, value: str, given: Mapping[str, str]) -> None:
    out.overrides.setdefault("loss.clip_low", value)
    out.overrides.setdefault("loss.clip_high", value)


def _kl_in_loss(out: Translation, value: str, given: Mapping[str, str]) -> None:
    if _truth(value):
        kind = given.get(f"{ACTOR}.kl_loss_type", "low_var_kl")
        out.overrides["loss.kl"] = KL_KINDS.get(kind, kind)
        out.overrides.setdefault("loss.kl_coef", given.get(f"{ACTOR}.kl_loss_coef", "0.001"))


def _kl_in_reward(out: Translation, value: str, given: Mapping[str, str]) -> None:
    if _truth(value):
        kind = given.get("algorithm.kl_penalty", "kl")
        out.overrides |= {"shaping": "[kl]", "shaping.kl.kind": KL_KINDS.get(kind, kind)}


def _kl_control(out: Translation, value: str, given: Mapping[str, str]) -> None:
    out.overrides["kl_control"] = "adaptive" if value == "adaptive" else "none"


def _minibatch(out: Translation, value: str, given: Mapping[str, str]) -> None:
    whole = int(given.get("data.train_batch_size", "1024"))
    if whole % int(value) == 0:
        out.overrides["train.minibatches"] = str(whole // int(value))
    else:
        out.unknown[f"{ACTOR}.ppo_mini_batch_size"] = f"{value} does not divide data.train_batch_size={whole}"


def _warmup(out: Translation, value: str, given: Mapping[str, str]) -> None:
    if int(value) >= 0:
        out.overrides["optim.warmup_steps"] = value


def _warmup_ratio(out: Translation, value: str, given: Mapping[str, str]) -> None:
    steps = given.get("trainer.total_training_steps")
    if float(value) == 0:
        return
    if steps is None:
        out.notes[f"{ACTOR}.optim.lr_warmup_steps_ratio"] = f"set optim.warmup_steps to {value} of the optimizer steps"
    else:
        out.overrides["optim.warmup_steps"] = str(round(float(value) * int(steps)))


def _schedule(out: Translation, value: str, given: Mapping[str, str]) -> None:
    out.overrides["optim.schedule"] = value


def _top_k(out: Translation, value: str, given: Mapping[str, str]) -> None:
    out.overrides["rollout.top_k"] = "0" if int(value) < 0 else value


def _eval_sampled(out: Translation, value: str, given: Mapping[str, str]) -> None:
    if not _truth(value):
        out.overrides["eval.temperature"] = "0"


def _frequency(key: str) -> Callable[[Translation, str, Mapping[str, str]], None]:
    def translate(out: Translation, value: str, given: Mapping[str, str]) -> None:
        out.overrides[key] = "0" if int(value) < 0 else value

    return translate


def _epochs(out: Translation, value: str, given: Mapping[str, str]) -> None:
    if "trainer.total_training_steps" not in given:
        batch = given.get("data.train_batch_size", "1024")
        out.notes["trainer.total_epochs"] = f"set train.steps to rows / {batch} * {value}"


def _logger(out: Translation, value: str, given: Mapping[str, str]) -> None:
    names = yaml.safe_load(value)
    sinks = [n for n in (names if isinstance(names, list) else [names]) if n in ("tensorboard", "wandb", "trackio")]
    out.overrides["log.sinks"] = f"[{','.join(sinks)}]"


def _resume(out: Translation, value: str, given: Mapping[str, str]) -> None:
    out.overrides["run.resume"] = {"auto": "auto", "disable": "never"}.get(value, "must")


def _understood(out: Translation, value: str, given: Mapping[str, str]) -> None:
    """Part of another name's translation."""


SPECIAL: Mapping[str, Callable[[Translation, str, Mapping[str, str]], None]] = MappingProxyType(
    {
        "algorithm.adv_estimator": _estimator,
        "algorithm.norm_adv_by_std_in_grpo": _understood,
        "algorithm.use_kl_in_reward": _kl_in_reward,
        "algorithm.kl_penalty": _understood,
        "algorithm.kl_ctrl.type": _kl_control,
        f"{ACTOR}.policy_loss.loss_mode": _loss_mode,
        f"{ACTOR}.loss_agg_mode": _aggregation,
        f"{ACTOR}.clip_ratio": _clip,
        f"{ACTOR}.use_kl_loss": _kl_in_loss,
        f"{ACTOR}.kl_loss_type": _understood,
        f"{ACTOR}.ppo_mini_batch_size": _minibatch,
        f"{ACTOR}.optim.lr_warmup_steps": _warmup,
        f"{ACTOR}.optim.lr_warmup_steps_ratio": _warmup_ratio,
        f"{ACTOR}.optim.warmup_style": _schedule,
        f"{ACTOR}.optim.lr_scheduler_type": _schedule,
        f"{ROLLOUT}.top_k": _top_k,
        f"{ROLLOUT}.val_kwargs.do_sample": _eval_sampled,
        "trainer.save_freq": _frequency("train.save_every"),
        "trainer.test_freq": _frequency("eval.every"),
        "trainer.total_epochs": _epochs,
        "trainer.logger": _logger,
        "trainer.resume_mode": _resume,
    }
)
"""Names whose values change, or that stand for several keys."""


def _finish(out: Translation, given: Mapping[str, str]) -> None:
    """Put choices before their keys, and leave out keys of pieces that are not chosen."""
    keys = out.overrides
    if any(k.startswith("loss.") for k in keys):
        keys.setdefault("loss", _with_convention("loss", "ppo_clip"))
    if "reward.path" in keys:
        keys["reward"] = "function"
        keys.setdefault("reward.name", "compute_score")
    for prefix, owner, needs in (
        ("shaping.kl.", "shaping", "algorithm.use_kl_in_reward=True"),
        ("kl_control.", "kl_control", "algorithm.kl_ctrl.type=adaptive"),
        ("loss.kl_coef", "loss.kl", f"{ACTOR}.use_kl_loss=True"),
    ):
        for key in [k for k in keys if k.startswith(prefix) and keys.get(owner, "none") == "none"]:
            out.notes[key] = f"left out: it has an effect with {needs} only"
            del keys[key]
    estimator = keys.get("advantage", "grpo").partition("@")[0]
    known = {s.name for s in find_piece(SLOTS["advantage"], estimator).settings}
    for key in ("advantage.gamma", "advantage.lam"):
        if key in keys and key.partition(".")[2] not in known:
            out.notes[key] = f"left out: {estimator} has no discount"
            del keys[key]
    slots_first = sorted(keys, key=lambda k: (k.partition(".")[0], "." in k))
    out.overrides = {key: keys[key] for key in sorted(slots_first, key=lambda k: "." in k)}


def _with_convention(slot: str, choice: str) -> str:
    """`choice@verl` where the piece knows what verl does under this name."""
    piece: Any = find_piece(SLOTS[slot], choice).target
    return f"{choice}@verl" if "verl" in getattr(piece, "conventions", {}) else choice


def _file(value: str) -> str:
    """verl takes a list of files; one file is the file itself."""
    names = yaml.safe_load(value)
    return str(names[0]) if isinstance(names, list) and len(names) == 1 else value


def _truth(value: str) -> bool:
    return value.strip().lower() in ("true", "1", "yes")

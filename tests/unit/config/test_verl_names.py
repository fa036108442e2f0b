import pytest

from coterie.config.compose import compose
from coterie.config.verl_names import NO_NEED, RENAMED, SPECIAL, from_verl

LAUNCH = r"""
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="['train.parquet']" \
    data.val_files=test.parquet \
    data.train_batch_size=64 \
    data.max_prompt_length=1024 \
    data.max_response_length=3072 \
    data.filter_overlong_prompts=True \
    actor_rollout_ref.model.path=Qwen/Qwen3-0.6B \
    actor_rollout_ref.actor.optim.lr=1e-5 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.top_k=-1 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.val_kwargs.do_sample=False \
    custom_reward_function.path=reward.py \
    trainer.logger='["console","wandb"]' \
    trainer.project_name=classmate \
    trainer.test_freq=5 trainer.save_freq=-1 trainer.total_epochs=3 \
    +trainer.resume_mode=auto
"""


def test_a_launch_script():
    found = from_verl(LAUNCH)
    assert found.unknown == {}
    assert found.overrides == {
        "advantage": "grpo@verl",
        "loss": "ppo_clip@verl",
        "model": "Qwen/Qwen3-0.6B",
        "reward": "function",
        "data.path": "train.parquet",
        "data.max_prompt_tokens": "1024",
        "eval.data.path": "test.parquet",
        "eval.temperature": "0",
        "eval.every": "5",
        "log.sinks": "[wandb]",
        "log.project": "classmate",
        "loss.kl": "k3",
        "loss.kl_coef": "0.001",
        "loss.entropy_coef": "0",
        "loss.aggregate": "fixed_length",
        "loss.fixed_length": "3072",
        "optim.lr": "1e-5",
        "reward.path": "reward.py",
        "reward.name": "compute_score",
        "rollout.max_tokens": "3072",
        "rollout.n": "8",
        "rollout.top_k": "0",
        "run.resume": "auto",
        "train.prompts_per_step": "64",
        "train.minibatches": "4",
        "train.save_every": "0",
    }
    assert set(found.notes) == {
        "data.filter_overlong_prompts",
        "actor_rollout_ref.rollout.name",
        "trainer.total_epochs",
    }


def test_what_comes_out_is_a_configuration(base):
    texts = [t for t in from_verl(LAUNCH).texts() if not t.startswith("reward")]
    run = compose("train", [*base, *texts]).run
    assert (run.train.minibatches, run.loss.dual_clip, run.rollout.max_tokens) == (4, 3.0, 3072)


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False", {"advantage": "dr_grpo@verl"}),
        ("algorithm.adv_estimator=rloo algorithm.gamma=1.0", {"advantage": "rloo@verl"}),
        (
            "algorithm.adv_estimator=gae algorithm.gamma=0.9 algorithm.lam=0.5",
            {"advantage": "gae@verl", "advantage.gamma": "0.9", "advantage.lam": "0.5"},
        ),
        (
            "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.1 algorithm.kl_penalty=low_var_kl",
            {"shaping": "[kl]", "shaping.kl.coef": "0.1", "shaping.kl.kind": "k3"},
        ),
        ("algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.1", {}),
        (
            "actor_rollout_ref.actor.kl_loss_coef=0.1 actor_rollout_ref.actor.use_kl_loss=False",
            {"loss": "ppo_clip@verl"},
        ),
        (
            "actor_rollout_ref.actor.clip_ratio=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28",
            {"loss": "ppo_clip@verl", "loss.clip_low": "0.2", "loss.clip_high": "0.28"},
        ),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", {"loss": "gspo@verl"}),
        (
            "data.apply_chat_template_kwargs.enable_thinking=False",
            {"data.chat_template_kwargs.enable_thinking": "False"},
        ),
        (
            "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1 trainer.total_training_steps=50",
            {"optim.warmup_steps": "5", "train.steps": "50"},
        ),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=-1", {}),
        ("trainer.resume_mode=disable", {"run.resume": "never"}),
    ],
)
def test_names(text, overrides):
    found = from_verl(text)
    assert (found.overrides, found.unknown) == (overrides, {})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("foo.bar=3", "foo.bar"),
        ("algorithm.adv_estimator=made_up", "algorithm.adv_estimator"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=x", "actor_rollout_ref.actor.policy_loss.loss_mode"),
        ("actor_rollout_ref.actor.loss_agg_mode=x", "actor_rollout_ref.actor.loss_agg_mode"),
        (
            "data.train_batch_size=10 actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.ppo_mini_batch_size",
        ),
    ],
)
def test_what_is_not_understood_is_listed(text, key):
    assert list(from_verl(text).unknown) == [key]


def test_each_name_has_one_meaning():
    assert not set(RENAMED) & set(NO_NEED) and not set(RENAMED) & set(SPECIAL) and not set(NO_NEED) & set(SPECIAL)

import dataclasses

import pytest

from coterie.config.checks import RANGES, Range
from coterie.config.compose import compose
from coterie.config.reference import sections
from coterie.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.minibatches=3"], "must divide train.prompts_per_step=8; 1, 2, 4 or 8 would"),
        (["rollout.n=1"], "advantage=grpo compares the rollouts of a group and needs rollout.n=2"),
        (["rollout.temperature=0"], "all the same, so nothing can be learned"),
        (["rollout.top_p=0"], r"rollout.top_p=0.0: must be in \(0, 1\]"),
        (["optim.beta1=1"], r"must be in \[0, 1\)"),
        (["optim.lr=-1"], "optim.lr=-1.0: must be at least 0"),
        (["optim.eps=0"], "must be above 0"),
        (["eval.every=10"], "would evaluate on training problems; set eval.data.path"),
        (["eval.every=10", "eval.data.path=h", "eval.n=4"], "sample with eval.temperature=0.6"),
        (["learner.share_prefix=true", "learner.gradient_checkpointing=true"], "switch one off"),
        (["kl_control=adaptive"], "a coefficient that nothing uses"),
        (["log.sinks=[wnadb]"], "did you mean wandb"),
        (["optim.warmup_steps=100"], "ends after 100 optimizer steps, still warming up"),
        (["eval.n=4"], "eval.n=4 has no effect: eval.every=0"),
        (["train.patience=4"], "has no effect: it counts evaluations"),
        (["optim.min_lr_ratio=0.1"], "optim.schedule=constant never goes down"),
        (["learner.ref_model=x"], "nothing needs ref_logprobs"),
        (["critic.lr=1e-3"], "critic.lr=0.001 has no effect: nothing needs values"),
        (["advantage=gae", "critic.warmup_steps=100"], "train.steps=100, before the policy learns"),
        (["advantage=gae", "critic.warmup_steps=60", "optim.warmup_steps=40"], "ends after 40 optimizer steps"),
        (["advantage=gae", "critic.value_clip=-1"], "critic.value_clip=-1.0: must be at least 0"),
        (["log.name=x"], "for wandb and trackio"),
        (["log.console=off", "log.sample_every=3"], "shows nothing"),
        (["train.smoke_test=off", "train.smoke_test_examples=3"], "has no effect"),
        (["data.size=10"], "only gym: tasks"),
        (["data.split=test"], "only hub: data sets"),
        (["data.options.a=1"], "have options"),
        (["data.chat=false", "data.system=x"], "raw text"),
        (["data.response_key=x"], "only coterie sft reads responses"),
        (["eval.every=5", "eval.data.path=h", "eval.top_p=0.5"], "eval.temperature=0 is greedy"),
    ],
)
def test_train(base, overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose("train", [*base, *overrides])


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.minibatches=4", "train.prompts_per_step=12"],
        ["optim.schedule=cosine", "optim.min_lr_ratio=0.1"],
        ["optim.warmup_steps=100", "train.epochs=2"],
        ["learner.ref_model=x", "loss.kl=k3", "loss.kl_coef=0.1"],
        ["learner.ref_model=x", "shaping=[kl]"],
        ["kl_control=adaptive", "shaping=[kl]"],
        ["log.sinks=[wandb]", "log.name=x"],
        ["eval.n=1"],
        ["data.path=gym:chain_sum", "data.size=10", "eval.every=5", "eval.data.seed=7"],
        ["rollout.n=1", "advantage=reinforce_pp"],
        ["rollout.n=1", "advantage=gae", "critic.lr=1e-3", "critic.warmup_steps=99"],
        ["experiment=ppo", "advantage=grpo", "eval.every=0"],
    ],
)
def test_what_may_be_said(base, overrides):
    assert compose("train", [*base, *overrides])


def test_a_missing_model_and_data_come_with_a_remedy():
    with pytest.raises(ConfigError) as caught:
        compose("generate")
    told = str(caught.value).splitlines()
    assert [line.partition(" ")[0] for line in told] == ["model", "data.path", "out"]
    assert "coterie model import" in told[0]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.prompts_per_step=3"], "belongs to RL; use sft.batch_size"),
        (["loss=ppo_clip"], "use loss=nll"),
        (["sft.epochs=2", "train.steps=10"], "sft.epochs decides"),
        (["eval.every=5", "eval.n=2"], "it samples nothing"),
        (["data.reference_key=x"], "data.response_key"),
    ],
)
def test_sft(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose("sft", ["model=m", "data.path=d", *overrides])


def test_generate():
    with pytest.raises(ConfigError, match="use n=1"):
        compose("generate", ["model=m", "data.path=d", "out=o", "rollout.temperature=0", "rollout.n=2"])
    with pytest.raises(ConfigError, match="writes `out` alone"):
        compose("generate", ["model=m", "data.path=d", "out=o", "run.dir=x"])


def test_switching_off_what_a_preset_uses_is_no_mistake(base, preset):
    chosen = preset("eval: {every: 10, n: 4, temperature: 0.5, data: {path: held_out.jsonl}}\n")
    assert compose("train", [*base, chosen, "eval.every=0"]).run.eval.n == 4
    with pytest.raises(ConfigError, match="eval.max_examples=3 has no effect"):
        compose("train", [*base, chosen, "eval.every=0", "eval.max_examples=3"])
    with pytest.raises(ConfigError, match=r"eval.n=4 has no effect.*set by experiment"):
        compose("train", [*base, preset("eval: {n: 4, temperature: 0.5}\n")])


def test_ranges_are_of_keys_that_exist_and_hold_for_the_defaults():
    fields = {f"{s}.{f.name}": getattr(c(), f.name) for s, c in sections().items() for f in dataclasses.fields(c)}
    for key, bounds in RANGES.items():
        if key.split(".")[0] in sections():
            assert bounds.holds(fields[key]), key
    numbers = {k for k, v in fields.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    assert numbers - set(RANGES) == {"eval.threshold"}


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (Range(0), [0, 5], [-1]),
        (Range(0, open_low=True), [0.1], [0]),
        (Range(0, 1), [0, 1], [-0.1, 1.1]),
        (Range(0, 1, open_low=True), [1], [0]),
        (Range(0, 1, open_high=True), [0], [1]),
    ],
)
def test_bounds(bounds, inside, outside):
    assert all(bounds.holds(v) for v in inside)
    assert not any(bounds.holds(v) for v in outside)

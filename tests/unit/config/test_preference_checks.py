import pytest

from coterie.config.compose import compose
from coterie.errors import ConfigError

BASE = ["model=m", "data.path=d"]


@pytest.mark.parametrize(
    ("verb", "overrides", "message"),
    [
        ("dpo", ["loss=ppo_clip"], "loss=ppo_clip is no preference loss; use loss=dpo"),
        ("dpo", ["loss=nll"], "loss=nll is no preference loss"),
        ("dpo", ["loss=bradley_terry"], "use coterie rm"),
        ("rm", ["loss=dpo"], "wants no score.*loss=bradley_terry"),
        ("train", ["loss=dpo", "reward=math"], "use coterie dpo"),
        ("train", ["loss=kto", "reward=math"], "use coterie dpo"),
        ("train", ["loss=bradley_terry", "reward=math"], "use coterie rm"),
        ("sft", ["loss=dpo"], "use loss=nll, or coterie dpo"),
        ("dpo", ["loss=kto", "dpo.batch_size=1"], "loss.reference_point=zero"),
        ("dpo", ["train.prompts_per_step=3"], "belongs to RL; use dpo.batch_size"),
        ("rm", ["train.epochs=3"], "belongs to RL; use rm.epochs"),
        ("dpo", ["dpo.epochs=2", "train.steps=10"], "dpo.epochs decides"),
        ("dpo", ["eval.every=5", "eval.data.path=h", "eval.n=2"], "it samples nothing"),
        ("dpo", ["eval.every=5"], "would evaluate on training rows"),
        ("dpo", ["data.max_prompt_tokens=3"], "dpo.max_tokens bounds"),
        ("dpo", ["data.label_key=l"], "reads pairs of answers"),
        ("dpo", ["loss=kto", "data.chosen_key=c"], "reads single answers"),
        ("dpo", ["data.margin_key=m"], "only coterie rm"),
        ("rm", ["data.margin_key=m"], "loss.margin=0; set loss.margin=1"),
        ("dpo", ["loss=simpo", "learner.ref_model=r"], "this loss has no reference"),
        ("dpo", ["loss=simpo", "dpo.reference=each_step"], "this loss has no reference"),
        ("dpo", ["dpo.reference=sometimes"], "dpo.reference=sometimes"),
        ("rm", ["learner.ref_model=r"], "this loss has no reference"),
        ("dpo", ["dpo.batch_size=0"], "must be at least 1"),
        ("rm", ["rm.max_tokens=1"], "must be at least 2"),
        ("sft", ["data.chosen_key=c"], "only coterie dpo and coterie rm"),
        ("train", ["reward=math", "data.label_key=c"], "only coterie dpo and coterie rm"),
        ("dpo", ["loss.beta=0"], "loss.beta=0.0: must be a finite number > 0"),
        ("dpo", ["loss=dpo@nobody"], "dpo@"),
    ],
)
def test_mistakes(verb, overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose(verb, [*BASE, *overrides])


def test_a_procedural_task_has_no_preferences():
    with pytest.raises(ConfigError, match="has no preferences"):
        compose("dpo", ["model=m", "data.path=gym:chain_sum"])


@pytest.mark.parametrize(
    ("verb", "overrides"),
    [
        ("dpo", []),
        ("dpo", ["learner.ref_model=r", "dpo.reference=each_step"]),
        ("dpo", ["loss=ipo@openrlhf", "eval.every=5", "eval.data.path=h", "dpo.epochs=1"]),
        ("dpo", ["loss=kto", "data.label_key=l", "data.response_key=completion"]),
        ("dpo", ["optim.schedule=cosine", "optim.warmup_steps=200", "dpo.epochs=2"]),
        ("rm", ["data.margin_key=m", "loss.margin=1", "loss.centre_coef=0.01"]),
    ],
)
def test_what_may_be_said(verb, overrides):
    assert compose(verb, [*BASE, *overrides]).verb == verb


def test_a_loss_of_the_user_is_evaluated_only_by_known_methods(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("def own(outputs, batch):\n    return None\nown.whole_groups = True\n")
    assert compose("dpo", [*BASE, f"loss={path}:own"])
    with pytest.raises(ConfigError, match="coterie.algos.PreferenceLoss"):
        compose("dpo", [*BASE, f"loss={path}:own", "eval.every=2", "eval.data.path=h"])

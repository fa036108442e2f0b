import pytest

from coterie.config.compose import compose
from coterie.config.resolve import show
from coterie.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.temprature=1", "rollout.temprature: unknown key; did you mean rollout.temperature"),
        ("lr=1e-5", "lr: unknown key; did you mean critic.lr or optim.lr"),
        ("optim.lr=fast", "optim.lr=fast: must be a number"),
        ("rollout.n=2.5", "rollout.n=2.5: must be a whole number"),
        ("rollout.n=null", "rollout.n=null: must be a whole number"),
        ("rollout.n.x=3", "must be a whole number"),
        ("run.resume=atuo", "never, auto or must; did you mean auto"),
        ("run.debug=yes", "true or false"),
        ("rollout.stop=abc", r"must be a list, like \[abc\]"),
        ("rollout.stop=[a,3]", "rollout.stop.1=3: must be text"),
        ("run=3", "run is a section"),
        ("model=3", "must be text"),
        ("model.x=3", "must be text"),
        ("eval.data.pth=x", "eval.data.pth: unknown key; did you mean path"),
        ("eval.data.size=many", "eval.data.size=many: must be a whole number"),
        ("eval.data=x", "keys and values"),
        ("advantage.epsilon=1", "advantage is grpo; did you mean advantage.eps"),
        ("advantage.eps=0", r"advantage.eps=0.0: must be a finite number > 0"),
        ("filters.constant.tolerance=1", r"constant is not among filters=\[\]; filters=\[constant\] puts it in"),
        ("filters.constnt.tolerance=1", "did you mean constant"),
        ("kl_control.target=1", "kl_control is off; choose one first: kl_control="),
        ("+rollout.n=3", "leave out the +"),
        ("+rollout.m=3", "rollout.m: unknown key"),
        ("+advantage.k=3", "advantage.k: unknown key"),
        ("data.system=${nothing.here}", "data.system: Interpolation key 'nothing.here' not found"),
        ("advantage.eps=???", "advantage.eps must be set"),
    ],
)
def test_one_mistake_one_line(base, override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        compose("train", [*base, override])
    assert "\n" not in str(caught.value)


def test_every_mistake_is_told_at_once(base):
    with pytest.raises(ConfigError) as caught:
        compose("train", [*base, "rollout.n=x", "optim.lrr=1", "advantage.eps=-1"])
    assert len(str(caught.value).splitlines()) == 3


def test_a_mistake_in_a_preset_names_the_preset(base, preset):
    with pytest.raises(ConfigError, match=r"rollout.nn: unknown key.*set by experiment .*preset.yaml"):
        compose("train", [*base, preset("rollout: {nn: 4}\n")])
    with pytest.raises(ConfigError, match=r"rollout.n=x: must be .*set by experiment"):
        compose("train", [*base, preset("rollout: {n: x}\n")])
    with pytest.raises(ConfigError, match=r"advantage.eps=0.0: .*set by experiment"):
        compose("train", [*base, preset("advantage: {eps: 0}\n")])


def test_a_preset_of_another_verb_says_so(preset):
    with pytest.raises(ConfigError, match=r"chooses advantage, which `coterie sft` doesn't have"):
        compose("sft", ["model=m", "data.path=d", preset("defaults:\n  - override /advantage: dr_grpo\n")])


def test_keys_of_a_replaced_choice_are_left_out_and_told(base, preset):
    chosen = preset(
        "defaults:\n  - override /advantage: dr_grpo\n  - override /filters: [constant]\n"
        "advantage: {score: quality, singleton: raw}\nfilters: {constant: {tolerance: 0.5}}\n"
    )
    reward = [text.replace(":reward", ":safety") for text in base]
    kept = compose("train", [*base, chosen, "advantage=dr_grpo@verl", "advantage.score=reward"])
    assert (kept.run.advantage.singleton, kept.run.filters["constant"].tolerance, kept.notes) == ("raw", 0.5, ())
    found = compose("train", [*reward, chosen, "advantage=rloo", "filters=[]"])
    assert found.run.advantage.score == "reward", "the score was meant for dr_grpo"
    assert found.run.filters == {}
    assert len(found.notes) == 3
    assert any("advantage.score=quality" in n and "meant for dr_grpo, not rloo" in n for n in found.notes)
    assert found.origins["advantage.score"] == "default"


def test_pieces_of_a_file_take_their_keys(base, pieces):
    found = compose(
        "train",
        [
            *base,
            "reward.scale=2",
            f"advantage={pieces}:Advantage",
            "advantage.names=[a,b]",
            f"filters=[{pieces}:keep,constant,{pieces}:Plain]",
            "filters.keep.count=2",
            "+filters.keep.more=true",
            "filters.Plain.size=1",
        ],
    )
    assert found.run.reward.settings == {"scale": 2.0}
    assert found.run.advantage.names == ("a", "b")
    assert list(found.run.filters) == ["keep", "constant", "Plain"]
    assert found.run.filters["keep"].settings == {"count": 2, "more": True}
    assert found.run.filters["Plain"].size == 1
    with pytest.raises(ConfigError, match=r"filters.Plain.size must be set"):
        compose("train", [*base, f"filters=[{pieces}:Plain]"])


def test_open_nodes_take_anything_with_or_without_a_plus(base):
    found = compose("train", [*base, "+model_kwargs.a.b=1", "model_kwargs.c=[1,x]", "eval.data.options.d=2"][:-1])
    assert found.run.model_kwargs == {"a": {"b": 1}, "c": [1, "x"]}


def test_a_controller_tells_the_loss(base):
    found = compose("train", [*base, "entropy_control=skywork"])
    assert found.run.loss.controlled == ("entropy_coef",)
    assert found.tree["loss"]["controlled"] == ["entropy_coef"]
    both = compose("train", [*base, "entropy_control=skywork", "kl_control=fixed", "loss.kl=k3"])
    assert both.run.loss.controlled == ("entropy_coef", "kl_coef")


def test_values_are_shown_the_way_they_are_typed():
    assert [show(v) for v in (None, True, {"a": [1, False]}, "x", 1e-6)] == [
        "null",
        "true",
        "{a: [1, false]}",
        "x",
        "1e-06",
    ]

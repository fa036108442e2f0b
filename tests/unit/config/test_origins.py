from coterie.config.compose import compose
from coterie.config.origins import Origins, flatten


def test_leaves_of_nested_mappings():
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": [1]})) == {"a.b": 1, "a.c": {}, "d": [1]}


def test_every_layer_is_named(base, preset):
    layered = preset(
        "defaults:\n  - override /advantage: dr_grpo@verl\nrollout: {n: 4, top_p: 0.5}\noptim: {lr: 1e-5}\n"
    )
    origins = compose("train", [*base, layered, "optim.lr=1e-4"]).origins
    label = layered.replace("=", " ")
    assert origins["rollout.n"] == label
    assert origins["advantage"] == label
    assert origins["advantage.singleton"] == "convention dr_grpo@verl"
    assert origins["advantage.score"] == "default"
    assert origins["optim.lr"] == "command line: optim.lr=1e-4"
    assert origins["loss"] == "conf/train.yaml"
    assert origins["train.steps"] == "default"


def test_a_mapping_on_the_command_line_counts_for_its_leaves(base):
    origins = compose("train", [*base, "rollout={n: 4, top_p: 0.5}", "filters=[constant]"]).origins
    assert origins["rollout.n"] == origins["rollout.top_p"] == "command line: rollout={n: 4, top_p: 0.5}"
    assert origins["rollout.top_k"] == "default"
    assert origins["filters"] == "command line: filters=[constant]"


def test_a_later_preset_wins(base, preset):
    one = preset("rollout: {n: 4}\n", "one.yaml").partition("=")[2]
    two = preset("rollout: {n: 6}\noptim: {lr: 1e-3}\n", "two.yaml").partition("=")[2]
    found = compose("train", [*base, f"experiment=[{one},{two}]"])
    assert found.run.rollout.n == 6
    assert found.origins["rollout.n"] == f"experiment {two}"


def test_notes_name_files_only():
    origins = Origins({"a": "experiment x", "b": "command line: b=1"})
    assert [origins.note(k) for k in "abc"] == [" (set by experiment x)", "", ""]
    assert [origins.from_command_line(k) for k in "abc"] == [False, True, False]

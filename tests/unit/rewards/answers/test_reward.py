import asyncio
import pickle

import numpy as np
import pytest

from coterie.core.protocols import Context
from coterie.core.types import Example, Group, Rollout
from coterie.errors import ConfigError
from coterie.rewards.answers import MathReward
from coterie.rewards.answers.reward import well_formed

GSM8K = "She sells 9 eggs at $2, 9 * 2 = <<9*2=18>>18 dollars.\n#### 18"


def score(reward, group):
    try:
        return [r.scores["reward"] for r in asyncio.run(reward(group, Context())).rollouts]
    finally:
        reward.close()


def classes(s):
    return [name for name in ("class_11", "class_10", "class_01", "class_00") if s.info[name]]


def test_right_and_wrong(group_of):
    scores = score(
        MathReward(correct=2.0, wrong=-1.0), group_of([r"\boxed{18}", "#### 18.0", r"\boxed{19}", "dunno"], GSM8K)
    )
    assert [s.value for s in scores] == [2.0, 2.0, -1.0, -1.0]
    assert [s.info["extracted"] for s in scores] == ["18", "18.0", "19", None]


def test_the_four_classes_of_cs336(group_of):
    texts = [
        "because</think> <answer>18</answer>",
        "because</think> <answer>19</answer>",
        r"the answer is \boxed{18}",
        "the answer is 19",
        "because</think>\n<answer>18</answer>",
    ]
    scores = score(MathReward(format="r1_zero", require_format=True), group_of(texts, "18"))
    assert [s.value for s in scores] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert [classes(s) for s in scores] == [["class_11"], ["class_10"], ["class_01"], ["class_00"], ["class_01"]]
    split = score(MathReward(format="r1_zero_split", require_format=True), group_of(texts, "18"))
    assert [s.value for s in split] == [1.0, 0.0, 0.0, 0.0, 1.0]


def test_format_weight(group_of):
    reward = MathReward(format="boxed", format_weight=0.1)
    scores = score(reward, group_of([r"\boxed{18}", r"\boxed{19}", "#### 18"], "18"))
    assert [s.value for s in scores] == [1.1, 0.1, 1.0]


@pytest.mark.parametrize(("treatment", "value"), [("wrong", 0.0), ("missing", None), ("grade", 1.0)])
def test_truncated(group_of, treatment, value):
    (s,) = score(MathReward(truncated=treatment), group_of([r"\boxed{18} and"], "18", finish="length"))
    assert s.value == value


def test_missing_is_not_wrong(group_of):
    (no_gold,) = score(MathReward(), group_of([r"\boxed{18}"], None))
    assert no_gold.value is None and "no gold" in no_gold.reason
    (aborted,) = score(MathReward(), group_of([r"\boxed{18}"], "18", finish="abort"))
    assert aborted.value is None and aborted.reason.startswith("rollout abort")


def test_policy_fields_reach_the_grader(group_of):
    assert score(MathReward(last_number=True), group_of(["it makes 18"], "18"))[0].value == 1.0
    assert score(MathReward(), group_of(["it makes 18"], "18"))[0].value == 0.0
    assert score(MathReward(tolerance="abs", tolerance_value=1), group_of(["#### 17.5"], "18"))[0].value == 1.0


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="tolerance_value"):
        MathReward(tolerance="rel")
    with pytest.raises(ConfigError, match="deadline_s"):
        MathReward(deadline_s=0)


def test_a_stop_string_cut_from_the_text_still_closes_the_tag():
    class Tokenizer:
        def decode(self, tokens):
            return "".join({1: "18", 2: "</answer>", 3: "!"}[t] for t in tokens)

    def formed(tokens, resources):
        array = np.array(tokens)
        rollout = Rollout(array, np.arange(len(array)), "so</think> <answer>18", "stop")
        return well_formed(rollout, "r1_zero", Context(resources=resources))

    assert formed([1, 2], {"tokenizer": Tokenizer()})
    assert not formed([1, 3], {"tokenizer": Tokenizer()})
    assert not formed([1, 2], {})


def test_reference_responses_are_right(group_of):
    for format in ("any", "boxed", "answer_tag", "hash", "r1_zero", "r1_zero_split"):
        reward = MathReward(format=format, require_format=True)
        text = reward.reference_response(Example("a", ()), GSM8K)
        assert score(reward, group_of([text], GSM8K))[0].value == 1.0, format


def test_it_travels():
    reward = MathReward(format="boxed", correct=3.0)
    copy = pickle.loads(pickle.dumps(reward))
    assert copy == reward and copy.writes == frozenset({"reward"})
    group = Group(Example("a", (), "18"), (Rollout(np.zeros(0, int), np.zeros(0, int), r"\boxed{18}", "stop"),))
    assert score(copy, group)[0].value == 3.0
    reward.close()

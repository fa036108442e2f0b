import pytest

from coterie.config.hints import any_of, did_you_mean, nearest, quoting_hint

KEYS = ["optim.lr", "rollout.n", "rollout.temperature", "eval.temperature", "run.seed"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("rollout.temprature", "rollout.temperature"), ("lr", "optim.lr"), ("seed", "run.seed"), ("optim.n", "rollout.n")],
)
def test_the_best_name_comes_first(typed, meant):
    assert nearest(typed, KEYS)[0] == meant


def test_something_is_always_offered_and_ties_are_in_order():
    assert len(nearest("zzzz", KEYS)) == 1
    assert nearest("zzzz", []) == []
    assert did_you_mean("zzzz", []) == ""
    assert nearest("temperature", KEYS)[:2] == ["eval.temperature", "rollout.temperature"]


def test_enumerations_read_like_english():
    assert [any_of(x) for x in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a or b", "a, b or c"]


def test_the_quoting_hint_shows_what_to_type():
    assert quoting_hint("data.template={prompt} x").endswith("\"data.template='{prompt} x'\"")
    assert quoting_hint("a.b=it's").endswith("\"a.b='it\\'s'\"")
    assert "key=value" in quoting_hint("rollout.n")
    assert "name" in quoting_hint("=3")
    assert "letters" in quoting_hint("a b=c")

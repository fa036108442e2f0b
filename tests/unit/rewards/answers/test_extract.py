import pytest

from coterie.rewards.answers import Policy, extract
from coterie.rewards.answers.extract import box_spans, has_marker


def found(text, **policy):
    return extract(text, Policy(**policy))


@pytest.mark.parametrize(
    ("text", "answer", "how"),
    [
        (r"so \boxed{41}, no: \boxed{42}", "42", "boxed"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "boxed"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}", "boxed"),
        ("<answer> 7 </answer>", "7", "answer_tag"),
        ("work\n#### 1,200", "1,200", "hash"),
        ("The final answer is 12. I hope it is correct.", "12", "phrase"),
        ("The answer is 3.5.", "3.5", "phrase"),
        ("Answer: **12**", "12", "phrase"),
        ("72", "72", "bare"),
    ],
)
def test_rules(text, answer, how):
    result = found(text)
    assert (result.text, result.how) == (answer, how)


def test_order_of_rules():
    text = "The answer is 1.\n#### 2\n\\boxed{3}\n<answer>4</answer>"
    assert found(text).text == "4"
    assert found(text.replace("<answer>4</answer>", "")).text == "3"
    assert found("The answer is 1.\n#### 2").text == "2"


def test_neighbouring_boxes_are_one_list():
    assert found(r"$\boxed{2}$ and $\boxed{3}$").text == "2, 3"
    assert found(r"\boxed{2}, \boxed{3} or \boxed{4}").text == "2, 3, 4"
    assert found(r"\boxed{2}. But that forgets a case, so \boxed{3}").text == "3"


def test_hedging_with_many_boxes_gives_no_answer():
    text = " then ".join(f"perhaps \\boxed{{{i}}} it is" for i in range(5))
    assert found(text).reason == "hedged"
    assert found(text, max_boxes=5).text == "4"
    assert found("again \\boxed{7} it is " * 50).text == "7"


def test_thought_is_not_searched():
    assert found(r"<think>\boxed{1}</think> \boxed{2}").text == "2"
    assert found(r"<think>\boxed{1}</think> no idea").text is None
    assert found(r"<think>\boxed{1}").reason == "unclosed think"
    assert found(r"<think>\boxed{1}", unclosed_think="grade").text == "1"


def test_fenced_code_is_not_searched():
    assert found("```\n\\boxed{1}\n```\n\\boxed{2}").text == "2"
    assert found("```\n\\boxed{1}\n```").text is None


def test_last_number_is_a_choice():
    assert found("so there are 40 and 32, 72 in all").text is None
    assert found("so there are 40 and 32, 72 in all", last_number=True).text == "72"


def test_only_the_end_of_a_long_response_is_searched():
    assert found("\\boxed{1}" + "x" * 70000).text is None
    assert found("x" * 10**6 + "\\boxed{1}").text == "1"


def test_empty_answers():
    for text in ("", "  ", r"\boxed{}", "<answer></answer>", "####"):
        assert found(text).text is None


def test_box_spans_skip_what_is_never_closed():
    assert box_spans(r"\boxed{1} \boxed{2") == [(0, 7, 8, 9)]
    assert [r"\boxed{\boxed{3}}"[a:b] for _, a, b, _ in box_spans(r"\boxed{\boxed{3}}")] == [r"\boxed{3}", "3"]


def test_markers():
    assert has_marker(r"\boxed{1}") and has_marker("The answer is 1") and has_marker("#### 1")
    assert not has_marker("x = 1")

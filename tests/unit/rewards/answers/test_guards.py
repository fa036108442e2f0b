import pytest

from coterie.rewards.answers.guards import nesting, refusal


@pytest.mark.parametrize(
    "text",
    [
        "10^{10^{10}}",
        "9^{9^{9^{9}}}",
        "2^{100000}",
        "99999!",
        "5!!",
        "(" * 101 + "1" + ")" * 101,
        "1 2",
        "__import__",
        r"\input{a}",
    ],
)
def test_refused(text):
    assert refusal(text)


@pytest.mark.parametrize("text", ["2^{2005}", "3^{2^{2}}", "100!", r"\log_2 8", "1 1/2", r"\frac{1}{x+1}", "e^{x^{2}}"])
def test_let_through(text):
    assert refusal(text) == ""


def test_nesting():
    assert nesting("((1)+(2))") == 2

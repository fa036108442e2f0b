import pytest

from coterie.rewards.answers import Policy
from coterie.rewards.answers.symbolic import Sympy, read, spell


def stage(**policy):
    marks = []
    return Sympy(Policy(**policy), marks.append), marks


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        (r"\sin^2 x", r"1-\cos^2 x", True),
        (r"\sin 2x", r"2\sin x", False),
        (r"\frac{\sqrt{3}}{3}", r"\tan 30^\circ", True),
        ("-1", r"e^{i\pi}", True),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}", True),
        (r"10^{-30}e", r"2\cdot 10^{-30}e", False),
        ("x", r"\sqrt{x^2}", False),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k", True),
        (r"(-\infty, -2) \cup (2, \infty)", "|x|>2", True),
        (r"0.1\ln 2", r"\frac{\ln 2}{10}", True),
        ("x", "X", False),
        (r"\ln(x+1)", r"\ln(y+1)", False),
    ],
)
def test_values(gold, answer, same):
    symbolic, marks = stage()
    assert symbolic.values(gold, answer) is same
    assert marks[:3] == ["gold", "answer", "compare"]


def test_equations_up_to_a_factor():
    symbolic, _ = stage()
    assert symbolic.equations(("y", "2x+3"), ("2x-y+3", "0"))
    assert symbolic.equations(("x^2", "4"), ("2x^2-8", "0"))
    assert not symbolic.equations(("x+y", "5"), ("x-y", "5"))
    assert not symbolic.equations(("x", "5"), ("y", "5"))


@pytest.mark.parametrize(("base", "natural", "decimal"), [("any", True, True), ("10", False, True), ("e", True, False)])
def test_log_base(base, natural, decimal):
    symbolic, _ = stage(log_base=base)
    assert symbolic.values(r"\ln 2", r"\log 2") is natural
    assert symbolic.values("2", r"\log 100") is decimal


def test_numbers_are_exact_and_never_evaluated_as_text():
    assert str(read("0.1", "10")) == "1/10"
    assert str(read("2^{0.5}", "10")) == "sqrt(2)"


def test_spelling_for_the_parser():
    assert spell("1 1/2", "10") == r"1\frac{1}{2}"
    assert spell("x(x+1)", "10") == r"x \cdot (x+1)"
    assert spell(r"\log 2", "e") == r"\ln 2"
    assert spell("12.5%", "10") == r"\frac{12.5}{100}" or spell("12.5%", "10") == r"\frac{\frac{25}{2}}{100}"

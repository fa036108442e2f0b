import pytest

from coterie.rewards.answers.forms import Equation, Interval, Items, Leaf, Matrix, Region, as_region, parse, readings
from coterie.rewards.answers.normalise import clean

INF = r"\infty"


def form(text):
    return parse(clean(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", Leaf("5")),
        ("(5)", Leaf("5")),
        ("3, 5 and 7", Items("", ("3", "5", "7"))),
        ("(1,2)", Items("(", ("1", "2"))),
        (r"\{2,1\}", Items("{", ("2", "1"))),
        (r"\langle 1,2 \rangle", Items("(", ("1", "2"))),
        ("x=5", Equation("x", "5", "x")),
        ("5=x", Equation("x", "5", "x")),
        ("2+3=5", Equation("2+3", "5", "")),
        ("[1,2)", Region("", (Interval("1", "2", True, False),))),
        ("x>3", Region("x", (Interval("3", INF, False, False),))),
        (r"1 \ge x > 0", Region("x", (Interval("0", "1", False, True),))),
        (r"x \ne 2", Region("x", (Interval("-" + INF, "2", False, False), Interval("2", INF, False, False)))),
        (r"x>1 \text{ and } x<4", Region("x", (Interval("1", "4", False, False),))),
        (r"\mathbb{R}", Region("", (Interval("-" + INF, INF, False, False),))),
        (r"\pm 2", Items("", ("+ 2", "- 2"))),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", Matrix((("1", "2"), ("3", "4")))),
        ("(x+1)(x-1)", Leaf("(x+1)(x-1)")),
    ],
)
def test_parse(text, expected):
    assert form(text) == expected


def test_a_comma_between_digits_has_two_readings():
    assert readings("1,000") == [Leaf("1,000"), Items("", ("1", "000"))]
    assert readings("100, 200") == [Items("", ("100", "200"))]
    assert readings("1,000, 2,000")[0] == Items("", ("1,000", "2,000"))


def test_unions_and_points():
    region = form(r"(-\infty,0)\cup\{3\}\cup[5,6]")
    assert isinstance(region, Region) and len(region.parts) == 3


def test_as_region():
    assert as_region(Items("(", ("1", "2"))) == Region("", (Interval("1", "2", False, False),))
    assert as_region(Items("{", ("1", "2"))) is None
    assert as_region(Leaf("5")) is None

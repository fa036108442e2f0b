from fractions import Fraction

import pytest

from coterie.rewards.answers.exact import Undecided
from coterie.rewards.answers.normalise import clean
from coterie.rewards.answers.reader import read, read_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18),
        ("1,000", 1000),
        ("1.5e3", 1500),
        (r"1.5 \times 10^{-1}", Fraction(3, 20)),
        ("1 1/2", Fraction(3, 2)),
        (r"-3\frac{1}{4}", Fraction(-13, 4)),
        (r"2 \cdot 1\frac{1}{2}", 3),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        ("0.1666...", Fraction(1, 6)),
        ("0.(5)", Fraction(5, 9)),
        (r"\frac{\frac{1}{2}}{3}", Fraction(1, 6)),
        ("2^3+1", 9),
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("5!", 120),
        ("8^{1/3}", 2),
        ("--7", 7),
        (r"\frac{3}{\sqrt{9}}", 1),
        ("6/2*3", 9),
        ("10-2-3", 5),
    ],
)
def test_numbers(text, value):
    assert read_number(clean(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2",
        "x2",
        "7 7",
        "7+",
        "7)",
        "(7",
        "1/0",
        "5!!",
        "2^{x}",
        r"\sin 1",
        r"\foo",
        "f(x)",
        "a,b",
        "1e99999",
        "9^9^9",
    ],
)
def test_not_arithmetic(text):
    with pytest.raises(Undecided):
        read(clean(text))


def test_two_readings_of_a_slash():
    assert read("1/2x").same(read(r"\frac{x}{2}"))
    assert read("1/2x", tight=True).same(read(r"\frac{1}{2x}"))


@pytest.mark.parametrize(
    "text", ["(" * 500 + "1" + ")" * 500, r"\frac" * 500, r"1\frac{" * 200, "1\\frac{1}{" * 60, "-" * 5000]
)
def test_deep_nesting_is_refused_at_once(text):
    with pytest.raises(Undecided):
        read(text)

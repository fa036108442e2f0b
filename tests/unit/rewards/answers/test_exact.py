from fractions import Fraction

import pytest

from coterie.rewards.answers.exact import Undecided, Value, binomial, factorial


def number(value):
    return Value.number(Fraction(value))


def test_roots_are_normal():
    assert number(12).root(2).same(number(2) * number(3).root(2))
    assert (number(1) / number(2).root(2)).same(number(2).root(2) / number(2))
    assert not number(2).root(2).same(number(3).root(2))
    assert number(8).root(3).fraction == 2
    assert number(-8).root(3).fraction == -2


def test_imaginary_unit():
    i = Value.atom("i")
    assert (i * i).fraction == -1
    assert number(-4).root(2).same(number(2) * i)
    one = number(1)
    assert (one / (one + i)).same((one - i) / number(2))


def test_polynomials_and_quotients():
    x = Value.atom("x")
    one = number(1)
    assert ((x + one) * (x - one)).same(x * x - one)
    assert ((x * x - one) / (x - one)).same(x + one)
    assert not (x + one).same(x - one)
    assert x.power(number(-2)).same(one / (x * x))


def test_close_numbers_are_different():
    huge = number(2).power(number(2005))
    assert not ((huge + number(1)) / huge).same(number(1))
    assert not number(Fraction(1, 10**30)).same(number(Fraction(1, 10**31)))


def test_factorials():
    assert (factorial(number(2005)) / factorial(number(2004))).fraction == 2005
    assert binomial(number(5), number(2)).fraction == 10


@pytest.mark.parametrize(
    "make",
    [
        lambda: number(10).power(number(10**10)),
        lambda: factorial(number(10**6)),
        lambda: number(1) / number(0),
        lambda: number(0).power(number(-1)),
        lambda: Value.atom("x").root(2),
        lambda: number(2).power(Value.atom("x")),
        lambda: (Value.atom("x") + number(1)).power(number(999)),
        lambda: number(10**9 + 7).root(2),
    ],
)
def test_what_is_too_much_is_undecided(make):
    with pytest.raises(Undecided):
        make()


def test_work_is_bounded():
    value = Value.atom("x")
    with pytest.raises(Undecided):
        for i in range(100_000):
            value = value + Value.number(i)

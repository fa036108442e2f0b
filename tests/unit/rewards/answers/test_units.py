from fractions import Fraction

import pytest

from coterie.rewards.answers.normalise import clean
from coterie.rewards.answers.units import Units, conflict, stem

UNITS = Units()


def split(text, loose=False):
    return UNITS.split(clean(text), loose)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72 clips", "72"),
        (r"5\text{ cm}^2", "5"),
        (r"5\ \mathrm{km/h}", "5"),
        ("$18.00", "18.00"),
        (r"90^\circ", "90"),
        ("12.5%", "12.5"),
        ("5th", "5"),
        ("3x", "3x"),
        ("2ab", "2ab"),
        (r"\text{Monday}", r"\text{Monday}"),
    ],
)
def test_value(text, value):
    assert split(text)[0] == value


def test_single_letters_are_units_only_where_asked():
    assert split("5m")[0] == "5m"
    assert split("5m", loose=True)[0] == "5"
    assert split("5x", loose=True)[0] == "5x"


def test_dimensions():
    metre, centimetre = split("1 m")[1], split("1 cm")[1]
    assert metre.dimension == centimetre.dimension and metre.factor / centimetre.factor == 100
    assert split(r"1\text{ m}^2")[1].dimension == split("1 square meter")[1].dimension
    assert split("1 liter")[1].factor == Fraction(1, 1000)
    assert split("60 mph")[1] == split("60 miles per hour")[1]


def test_conflict():
    def clash(a, b):
        return conflict(split(a)[1], split(b)[1])

    assert clash("5 m", "5 kg") and clash("5 apples", "5 oranges") and clash("5 m", "5 apples") and clash("5%", "5 kg")
    assert not clash("5 m", "5 cm") and not clash("5 m", "5") and not clash("5 apples", "5 red apples")


def test_stem():
    assert [stem(w) for w in ("apples", "berries", "boxes", "glass", "people")] == [
        "apple",
        "berry",
        "box",
        "glass",
        "person",
    ]

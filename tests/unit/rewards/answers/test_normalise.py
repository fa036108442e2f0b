import pytest

from coterie.rewards.answers.normalise import brace_pairs, canonical, clean, enclosed, unwrap_text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (r"$\dfrac12$", r"\frac{1}{2}"),
        (r"\left( 1 \right)", "( 1 )"),
        (r"12\,345", "12345"),
        ("12{,}345", "12345"),
        ("1 000 000", "1000000"),
        ("1,000", "1,000"),
        ("3{,}14", "3.14"),
        ("3.141\\,592", "3.141592"),
        ("1 2", "1 2"),
        ("½", r"\frac{1}{2}"),
        ("x²", "x^{2}"),
        ("√2", r"\sqrt{2}"),
        ("−5", "-5"),
        ("2**10", "2^{10}"),
        ("sqrt(2)", r"\sqrt(2)"),
        ("$18", r"\$18"),
        ("42.", "42"),
        ("**42**", "42"),
        ("{{5}}", "5"),
        (r"50\%", "50%"),
        (r"x \leq 3", r"x \le 3"),
        (r"\mathrm{e}", "e"),
        ("3 x 10^8", r"3\times 10^{8}"),
    ],
)
def test_clean(text, cleaned):
    assert clean(text) == cleaned


def test_clean_is_stable():
    for text in (r"\frac{\sqrt3}2", r"12\,345\text{ cm}^2", r"\{1, 2\}", "1 1/2"):
        assert clean(clean(text)) == clean(text)


def test_canonical_keeps_what_blanks_mean():
    assert canonical(clean("1 2")) != canonical(clean("12"))
    assert canonical(clean("x + 1")) == canonical(clean("x+1"))
    assert canonical(clean("x^{2}")) == canonical(clean("x^2"))
    assert canonical(clean(r"\sin x")) != canonical(clean(r"\sinx"))


def test_unwrap_text():
    assert unwrap_text(r"5\text{ cm}^2") == "5 cm ^2"
    assert unwrap_text(r"\text{a") == r"\text{a"


def test_braces():
    assert brace_pairs("{a{b}}") == {0: 5, 2: 4}
    assert brace_pairs(r"\{a\}") == {}
    assert enclosed("{1}") and not enclosed("{1}{2}")

"""Properties of the grader's cheap stages (no worker process): they never raise, and they don't depend on spelling."""

import math
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.rewards.answers import Policy, extract
from coterie.rewards.answers.decide import Elsewhere, Judge
from coterie.rewards.answers.exact import Undecided
from coterie.rewards.answers.forms import readings
from coterie.rewards.answers.guards import refusal
from coterie.rewards.answers.normalise import canonical, clean
from coterie.rewards.answers.reader import read
from coterie.rewards.answers.units import Units

UNITS = Units()
PIECES = [
    *"0123456789 .,;:+-*/^_=<>()[]{}|!%$&'\"\\abcxyzeiABX\n~`#",
    *(
        r"\frac",
        r"\frac12",
        r"\sqrt",
        r"\pi",
        r"\infty",
        r"\text{",
        r"\left(",
        r"\right)",
        r"\{",
        r"\}",
        r"\cup",
        r"\pm",
    ),
    *(r"\le", r"\ne", r"\in", r"\circ", r"\boxed{", r"\,", r"\%", r"\$", r"\begin{pmatrix}", r"\end{pmatrix}", r"\\"),
    *(r"\overline{", r"\cdot", r"\approx", r"\langle", r"\mathbb{R}", r"\emptyset", r"\binom"),
    *("and", "or", "not", "cm", "dollars", "<answer>", "</answer>", "<think>", "</think>", "####", "answer: ", "```"),
    *"½²√π−≤∞°∪×",
    *("(1,2)", "10^{10^{10}}", "1 1/2", "3:30 pm", "12_8", "\u0301", "\u200b", "１", "\x00"),
]
mathematics = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
anything = mathematics | st.text(max_size=80)
fractions = st.fractions(max_denominator=200).filter(lambda f: abs(f) < 10**6)


def decide(gold, answer, **policy):
    return Judge(Policy(**policy), Elsewhere(), UNITS).decide(gold, answer)


@settings(max_examples=1500, deadline=None)
@given(anything, anything)
def test_no_text_makes_it_raise(gold, answer):
    assert decide(gold, answer) in (True, False, None)
    extract(answer, Policy(last_number=True))
    refusal(clean(answer))
    readings(clean(answer))


@settings(max_examples=500, deadline=None)
@given(anything)
def test_every_answer_equals_itself(text):
    if canonical(clean(text)):
        assert decide(text, text) is True


@settings(max_examples=500, deadline=None)
@given(anything)
def test_extraction_finds_a_last_box(text):
    found = extract(text + "\n so \\boxed{173}", Policy(unclosed_think="grade", max_boxes=100))
    if "</think>" not in text and "```" not in text and found.how == "boxed":
        assert found.text == "173" or found.text.endswith("173")


@st.composite
def spelled(draw, value):
    """A number in one of the ways that people write it."""
    n, d = value.numerator, value.denominator
    forms = [f"{n}/{d}", f"\\frac{{{n}}}{{{d}}}", f"\\dfrac{{{n}}}{{{d}}}", f"$\\frac{{{n}}}{{{d}}}$", f"({n})/{d}"]
    k = draw(st.integers(2, 9))
    forms.append(f"\\frac{{{n * k}}}{{{d * k}}}")
    sign, whole, rest = ("-" if n < 0 else ""), abs(n) // d, abs(n) % d
    if d == 1:
        forms += [
            str(n),
            f"{n}.0",
            f"{n:,}",
            f"{n:,}".replace(",", "{,}"),
            f"{n:,}".replace(",", r"\,"),
            f"\\boxed{{{n}}}",
        ]
    elif whole:
        forms += [f"{sign}{whole} {rest}/{d}", f"{sign}{whole}\\frac{{{rest}}}{{{d}}}"]
    if all(d % p for p in (3, 7, 11, 13, 17, 19)) and 10**12 % d == 0:
        forms.append(f"{Fraction(n, d) * 10**12 // 1}e-12")
    return draw(st.sampled_from(forms))


@settings(max_examples=400, deadline=None)
@given(st.data(), fractions)
def test_numbers_in_any_spelling(data, value):
    gold, answer = data.draw(spelled(value)), data.draw(spelled(value))
    assert decide(gold, answer) is True, (gold, answer)


@settings(max_examples=400, deadline=None)
@given(st.data(), fractions, fractions)
def test_different_numbers_stay_different_and_the_verdict_is_symmetric(data, x, y):
    gold, answer = data.draw(spelled(x)), data.draw(spelled(y))
    assert decide(gold, answer) is (x == y), (gold, answer)
    assert decide(answer, gold) is (x == y), (gold, answer)


@settings(max_examples=300, deadline=None)
@given(fractions, st.integers(min_value=-40, max_value=-7))
def test_no_difference_is_too_small(value, exponent):
    near = value + Fraction(10) ** exponent
    assert decide(f"{value.numerator}/{value.denominator}", f"{near.numerator}/{near.denominator}") is False


numbers = st.integers(0, 20).map(lambda n: (str(n), Fraction(n)))


def _join(pair):
    (a, x), operator, (b, y) = pair
    if operator == "+":
        return f"{a}+{b}", x + y
    if operator == "-":
        return f"{a}-({b})", x - y
    if operator == "*":
        return f"({a})\\cdot ({b})", x * y
    return f"\\frac{{{a}}}{{{b}}}", (x / y if y else None)


expressions = st.recursive(
    numbers,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner)
        .filter(lambda p: p[0][1] is not None and p[2][1] is not None)
        .map(_join)
        .filter(lambda e: e[1] is not None)
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(expressions)
def test_arithmetic_is_that_of_fractions(expression):
    text, value = expression
    assert read(clean(text)).fraction == value, text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=4), st.integers(-4, 4), st.integers(-4, 4))
def test_polynomials_agree_with_their_values(coefficients, shift, x):
    text = "+".join(f"({c})*(x+({shift}))^{k}" for k, c in enumerate(coefficients))
    polynomial = read(clean(text))
    at_point = read(clean(text.replace("x", f"({x})")))
    assert at_point.fraction == sum(c * (x + shift) ** k for k, c in enumerate(coefficients))
    assert polynomial.same(read(clean(text.replace("(x+", "(0+x+"))))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400))
def test_square_roots_multiply(a, b):
    product = read(f"\\sqrt{{{a}}}\\cdot \\sqrt{{{b}}}")
    assert product.same(read(f"\\sqrt{{{a * b}}}"))
    assert (product.fraction is not None) == (math.isqrt(a * b) ** 2 == a * b)


@settings(max_examples=200, deadline=None)
@given(st.lists(fractions, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_lists_have_no_order_and_tuples_do(values, random):
    spelled_values = [f"{v.numerator}/{v.denominator}" for v in values]
    shuffled = list(values)
    random.shuffle(shuffled)
    other = ", ".join(f"\\frac{{{v.numerator}}}{{{v.denominator}}}" for v in shuffled)
    assert decide(", ".join(spelled_values), other) is True
    assert decide(f"({', '.join(spelled_values)})", f"({other})") is (shuffled == values)
    assert decide(spelled_values[0], other) is False


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**6))
def test_factors_of_hundred_are_not_forgiven(n):
    assert decide(str(n), str(n * 100)) is False
    assert decide(f"{n}", f"{n / 100}") is False
    assert decide(f"{n}\\%", f"{n}") is True


def test_undecided_is_only_raised_inside():
    for text in ("x^x", r"\sin x", "2^{1/3}"):
        try:
            read(text)
        except Undecided:
            assert decide(text, "7") is None

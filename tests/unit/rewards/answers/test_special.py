import pytest

from coterie.rewards.answers import special
from coterie.rewards.answers.normalise import clean


@pytest.mark.parametrize("text", ["Monday", r"\text{ab}", "CAB", "no", "x plus 2", "AB"])
def test_words(text):
    assert special.wordy(clean(text))


@pytest.mark.parametrize("text", ["2xy", "abc", r"\sin x", "x+1", "42", r"\alpha\beta"])
def test_mathematics(text):
    assert not special.wordy(clean(text))


def test_choice():
    assert special.choice("B", "(B) 12", insist=False) is True
    assert special.choice("B", "C", insist=False) is False
    assert special.choice("B", "b", insist=False) is True
    assert special.choice("12", "B", insist=False) is None
    assert special.choice("B", "x+1", insist=True) is False


def test_clock():
    assert special.compare("3:30 pm", "15:30") is True
    assert special.compare("3:30 pm", "3:30 am") is False
    assert special.compare("3:30 pm", "3:30") is True
    assert special.compare("12 pm", "noon") is True
    assert special.compare("5", "6") is None


def test_base_and_ratio():
    assert special.compare("2516_8", "2516_{8}") is True
    assert special.compare("2516_8", "2516_9") is False
    assert special.compare("2516_8", "2516") is False
    assert special.compare("25_{10}", "25") is None
    assert special.compare("3:4", "6:8") is False
    assert special.compare("3:4", r"\frac{3}{4}") is True


def test_number_words():
    assert special.digits("seven apples", other="7") == "7 apples"
    assert special.digits("one hundred twenty-one", other="7") == "121"
    assert special.digits("2 million", other="7") == "2000000"
    assert special.digits("seven", other="eight") == "seven"


def test_letter_of_an_integer_family():
    assert special.same_integer_name(r"\pi+2k\pi", r"\pi+2n\pi") == r"\pi+2k\pi"
    assert special.same_integer_name("2k", "2n") == "2n"

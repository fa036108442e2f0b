"""Answers that are no plain mathematics: words, choice letters, clock times, ratios, other number bases, negations."""

from __future__ import annotations

import math
import re

from coterie.rewards.answers.forms import Interval, Region
from coterie.rewards.answers.normalise import unwrap_text
from coterie.rewards.answers.reader import read_number
from coterie.rewards.answers.units import stem

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALED = re.compile(
    r"^(.*?[\d}.)])\s*(?:\\text\{)?\s*(dozen|hundred|thousand|million|billion|trillion)s?\b\s*\}?(.*)$", re.IGNORECASE
)

_CHOICE = re.compile(r"^\(?\s*([A-Z])\s*(?:\)|$)|^(?i:option|choice|answer)\s+\(?([A-Z])\)?$")
_CHOICE_PREFIX = re.compile(r"^(?:\(\s*([A-J])\s*\)|([A-J])[.):])(?:\s+|(?=[\\\d-]))(.+)$", re.DOTALL)
_OTHER_CHOICE = re.compile(r"(?:or|and)\b|[,;/&]")
_NEGATED = re.compile(r"^(?:\\neg|\\ne|\\not|not\b|isn't|is not)")
_CLOCK = re.compile(r"^(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(am|pm|noon|midnight)?$")
_RATIO_SPLIT = re.compile(r"\s*:\s*|(?<=[\d}])\s+to\s+(?=[\d\\])")
_BASE = re.compile(r"^\(?([0-9A-Fa-f.]+)\)?\s*(?:_\s*(?:\{\s*([^{}]*)\s*\}|(\d))|\(?\s*base\s+(\w+)\s*\)?)$")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]")
_FRACTION = re.compile(r"^-?\s*(?:\\frac\{(\d+)\}\{(\d+)\}|(\d+)\s*/\s*(\d+))$")
_PUNCTUATION = re.compile(r"[^\w\s%$+./-]|(?<!\d)\.|\.(?!\d)")
_ARTICLES = frozenset(("the", "a", "an", "on", "at", "in", "it", "is", "are"))
_TRIG = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan)(?![a-zA-Z])")
_EMPTY_SETS = frozenset(
    (
        r"\emptyset",
        r"\{\}",
        "no solution",
        "no solutions",
        "no real solution",
        "no real solutions",
        "none",
        "empty set",
        "the empty set",
    )
)


def wordy(text: str) -> bool:
    """Whether the text contains words, as opposed to mathematics with letters.

    Runs of up to three lower-case letters without an "o" are products; longer runs and capitals (AB, CAB) are words.
    """
    for match in _WORD.finditer(unwrap_text(text)):
        run = match.group()
        if len(run) > 3 or "o" in run or any(c.isupper() for c in run):
            return True
    return r"\text{" in text


def same_words(gold: str, answer: str) -> bool:
    """Whether two texts are the same words, whatever their case, articles and punctuation."""
    g, a = _words(gold), _words(answer)
    joined = "".join(g)
    return bool(g) and (g == a or (joined == "".join(a) and not any(c.isdigit() for c in joined)))


def _words(text: str) -> list[str]:
    plain = _PUNCTUATION.sub(" ", unwrap_text(text).replace("\\", " ").casefold().replace("-", " "))
    words = plain.split()
    kept = [w for w in words if w not in _ARTICLES] or words
    return [stem(w) for w in kept]


def choice(gold: str, answer: str, insist: bool) -> bool | None:
    """Compare choice letters; None when the gold is no choice."""
    gold_letter, gold_rest = _letter(gold)
    answer_letter, answer_rest = _letter(answer)
    if gold_letter is None:
        return None if not insist else same_words(gold, answer)
    if insist or not gold_rest:
        if answer_letter is None and (match := re.match(r"^\(?([a-z])\)?\.?$", unwrap_text(answer).strip())):
            answer_letter = match.group(1).upper()
        if answer_letter is not None:
            return answer_letter == gold_letter
        return False if insist else None
    if answer_letter is None:
        return None
    if answer_letter != gold_letter:
        return False
    return True if not answer_rest else None


def _letter(text: str) -> tuple[str | None, str]:
    plain = unwrap_text(text).strip()
    prefix = _CHOICE_PREFIX.match(plain)
    if prefix and not _OTHER_CHOICE.match(prefix.group(3)):
        return prefix.group(1) or prefix.group(2), prefix.group(3).strip()
    match = _CHOICE.match(plain.rstrip(".:"))
    if match and match.end() == len(plain.rstrip(".:")):
        return match.group(1) or match.group(2), ""
    return None, ""


def without_letter(text: str) -> str:
    """`(B) 12` as `12`."""
    letter, rest = _letter(text)
    return rest if letter is not None and rest else text


def negated(text: str) -> bool:
    """Whether the text denies what follows (`\\neg 7`, `\\ne 7`, "not 7")."""
    return _NEGATED.match(unwrap_text(text).lower()) is not None


def compare(gold: str, answer: str) -> bool | None:
    """Clock times, numbers in another base and ratios, component by component; None when neither side is one."""
    for rule in (_clock, _base, _ratio):
        verdict = rule(gold, answer)
        if verdict is not None:
            return verdict
    return None


def _clock(gold: str, answer: str) -> bool | None:
    g, a = _time(gold), _time(answer)
    if g is None and a is None:
        return None
    if g is None or a is None:
        bare = _BARE_HOUR.match(unwrap_text(gold if g is None else answer))
        timed = a if g is None else g
        return None if not bare or timed is None else (int(bare.group()), 0, 0) == timed[:3]
    if g[3] and a[3]:
        return _day(g) == _day(a)
    return g[:3] == a[:3] or _day(g) == _day(a)


_BARE_HOUR = re.compile(r"^\d{1,2}$")


def _time(text: str) -> tuple[int, int, int, str] | None:
    plain = re.sub(r"([ap])\s?\.?\s?m\b\.?", r"\1m", unwrap_text(text).lower()).strip()
    plain = re.sub(r"^(\d{1,2}) ?o ?'? ?clock", r"\1:00", plain)
    plain = {"noon": "12 pm", "midnight": "12 am"}.get(plain, plain)
    match = _CLOCK.match(plain)
    if not match or not (match.group(2) or match.group(4)):
        return None
    half = {"noon": "pm", "midnight": "am"}.get(match.group(4) or "", match.group(4) or "")
    hour, minute, second = int(match.group(1)), int(match.group(2) or 0), int(match.group(3) or 0)
    return (hour, minute, second, half) if hour < 25 and minute < 60 else None


def _day(time: tuple[int, int, int, str]) -> tuple[int, int, int]:
    hour, minute, second, half = time
    return (hour % 12 + (12 if half == "pm" else 0) if half else hour, minute, second)


def _base(gold: str, answer: str) -> bool | None:
    g, a = _in_base(gold), _in_base(answer)
    if g is None and a is None:
        return None
    return g == a


def _in_base(text: str) -> tuple[str, str] | None:
    """Digits and base of a number in another base than ten."""
    match = _BASE.match(unwrap_text(text))
    if not match or not any(c.isdigit() for c in match.group(1)):
        return None
    base = (match.group(2) or match.group(3) or match.group(4)).lower().removeprefix("base").strip(" ()")
    base = str(_ONES.index(base)) if base in _ONES else base
    if base in ("10", "") or not base.isdigit():
        return None
    return match.group(1).upper().lstrip("0") or "0", base


def _ratio(gold: str, answer: str) -> bool | None:
    g, a = _RATIO_SPLIT.split(gold), _RATIO_SPLIT.split(answer)
    if len(g) == 1 and len(a) == 1:
        return None
    if len(g) != len(a):
        return _ratio_value(g, answer) if len(a) == 1 else _ratio_value(a, gold)
    pairs = [(read_number(x), read_number(y)) for x, y in zip(g, a, strict=True)]
    if any(x is None or y is None for x, y in pairs):
        return None
    return all(x == y for x, y in pairs)


def _ratio_value(parts: list[str], other: str) -> bool | None:
    """`3:4` against `\\frac{3}{4}`."""
    if len(parts) != 2:
        return False
    top, bottom, value = read_number(parts[0]), read_number(parts[1]), read_number(other)
    if top is None or bottom is None or value is None:
        return None
    return bottom != 0 and top / bottom == value


def digits(text: str, other: str) -> str:
    """Number words as digits: "seven", "twenty-one", "2 million"; a unit behind stays."""
    scaled = _SCALED.match(text)
    if scaled:
        value = read_number(scaled.group(1).replace(r"\$", ""))
        if value is not None:
            value *= _SCALES[scaled.group(2).lower()]
            money = r"\$" if r"\$" in scaled.group(1) else ""
            number = str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"
            return f"{money}{number} {scaled.group(3).strip()}".strip()
    if not any(c.isdigit() for c in other):
        return text
    words = unwrap_text(text).lower().replace("-", " ").split()
    count, spelled = _number_words(words)
    return " ".join([str(spelled), *words[count:]]) if count else text


def _number_words(words: list[str]) -> tuple[int, int]:
    """How many leading words spell a number, and that number: "one hundred five apples" is (3, 105)."""
    value_of = {w: i for i, w in enumerate(_ONES)} | {w: 20 + 10 * i for i, w in enumerate(_TENS)}
    total = current = count = 0
    for word in words:
        if word in value_of:
            current += value_of[word]
        elif word == "hundred" and count:
            current *= 100
        elif word in _SCALES and count:
            total, current = total + current * _SCALES[word], 0
        else:
            break
        count += 1
    return count, total + current


def has_letters(text: str) -> bool:
    """Whether a variable may stand in the text."""
    return _LETTER.search(_COMMAND.sub(" ", unwrap_text(text))) is not None


def same_integer_name(gold: str, answer: str) -> str:
    """The answer with its letter for "any whole number" replaced by the gold's: `\\pi + 2n\\pi` for `\\pi + 2k\\pi`."""
    names = [set(_LETTER.findall(_COMMAND.sub(" ", text))) & set("kmnj") for text in (gold, answer)]
    (g, a) = (names[0] - names[1], names[1] - names[0])
    if len(g) != 1 or len(a) != 1 or r"\pi" not in gold:
        return answer
    (old,), (new,) = a, g
    return re.sub(rf"(?<![\\a-zA-Z]){old}(?![a-zA-Z])", new, answer)


def both_functions(gold: str, answer: str) -> bool:
    """Whether two left sides name the same thing: `y` and `f(x)`."""
    return "y" in (gold, answer) and any(re.fullmatch(r"[fgh]\(x\)", name) for name in (gold, answer))


def is_decimal(text: str) -> bool:
    """Whether the text is a decimal fraction."""
    return re.fullmatch(r"-?\d*\.\d+", text) is not None


def is_empty_set(text: str) -> bool:
    """`\\emptyset` and its names."""
    return unwrap_text(text).lower().strip() in _EMPTY_SETS


def is_trigonometric(text: str) -> bool:
    """Whether a trigonometric function stands in the text, so that ° belongs to its argument."""
    return _TRIG.search(text) is not None


def in_radians(text: str) -> bool:
    """Whether π stands in the text."""
    return r"\pi" in text


def reducible(text: str) -> bool:
    """Whether the text is a fraction of whole numbers that could be reduced."""
    match = _FRACTION.match(text)
    if not match:
        return False
    top, bottom = (int(g) for g in match.groups() if g is not None)
    return math.gcd(top, bottom) > 1


def set_like(text: str) -> bool:
    """Whether the text builds a set by operations that need the symbolic stage."""
    return re.search(r"\\(?:cup|cap|setminus|mathbb|le|ge|ne)(?![a-zA-Z])|[<>]", text) is not None


def spell_region(region: Region) -> str:
    """Interval notation."""
    return r" \cup ".join(_spell_interval(part) for part in region.parts)


def _spell_interval(part: Interval) -> str:
    return f"{'[' if part.low_closed else '('}{part.low}, {part.high}{']' if part.high_closed else ')'}"

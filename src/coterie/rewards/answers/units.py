"""Units behind a value: split them off, and say whether two of them agree.

Known units carry a dimension and a factor, so 100 cm is 1 m and 3 hours is not 3 minutes. Unknown ones ("apples") are
compared as words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from coterie.rewards.answers.normalise import unwrap_text

Dimension = tuple[tuple[str, int], ...]

_UNITS = """
length 1/1000 mm millimeter millimetre
length 1/100 cm centimeter centimetre
length 1/10 dm decimeter decimetre
length 1 m meter metre
length 1000 km kilometer kilometre
length 127/5000 in inch inches
length 381/1250 ft foot feet
length 1143/1250 yd yard
length 201168/125 mi mile
mass 1/1000 mg milligram
mass 1 g gram gm
mass 1000 kg kilogram kilo
mass 1000000 tonne
mass 45359237/100000 lb lbs pound
mass 45359237/1600000 oz ounce
time 1/1000 ms millisecond
time 1 s sec second
time 60 min minute
time 3600 h hr hour
time 86400 day
time 604800 week
month 1 month
month 12 yr year
volume 1/1000 ml mL milliliter millilitre cc
volume 1 l L liter litre
volume 473176473/125000000 gal gallon
volume 473176473/500000000 qt quart
volume 473176473/1000000000 pint
volume 473176473/2000000000 cup
area 1 acre
dollar 1 dollar usd buck
dollar 1/100 cent penny pennies
euro 1 euro eur
sterling 1 gbp
rupee 1 rupee rs
yen 1 yen
degree 1 degree deg
radian 1 radian rad
celsius 1 celsius
fahrenheit 1 fahrenheit
speed 1 mph
speed_kmh 1 kmh kph kmph
force 1 N newton
energy 1 J joule
power 1 W watt
power 1000 kW kilowatt
volt 1 V volt
ampere 1 A ampere amp
ohm 1 ohm
hertz 1 Hz hertz
"""
_DERIVED: dict[str, tuple[Dimension, Fraction]] = {
    "speed": ((("length", 1), ("time", -1)), Fraction(201168, 125) / 3600),
    "speed_kmh": ((("length", 1), ("time", -1)), Fraction(1000, 3600)),
    "volume": ((("length", 3),), Fraction(1, 1000)),
    "area": ((("length", 2),), Fraction(316160658, 78125)),
}
_CASED = frozenset(("m", "g", "s", "h", "l", "L", "N", "J", "W", "V", "A", "kW", "Hz", "mL"))
_EMPTY = frozenset(("unit", "square", "sq", "cubic", "cube", "approximately", "about", "exactly", "total"))
_CURRENCY = {
    r"\$": "dollar",
    "D": "dollar",
    "EUR": "euro",
    "GBP": "sterling",
    "€": "euro",
    "£": "sterling",
    "¥": "yen",
    "₹": "rupee",
}
_CURRENCY_SIGN = re.compile(r"^([-+]?)\s*(\\\$|[€£¥₹]|Rs\.?(?= ?\d)|US ?\\\$|USD|EUR|GBP)\s*")
_TAIL_GROUP = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf|mathit)\{[^{}\d]*\}\s*(?:\^\{?\d\}?)?\s*$")
_TAIL_SYMBOL = re.compile(r"(%|\^\\circ\s*[CF]?|\\circ\s*[CF]?|€|\\\$|(?<=\d)[\"']{1,2})\s*$")
_TAIL_WORDS = re.compile(
    r"(?<=[\d)}%\s])((?:(?:per|square|cubic|sq)\s+)*[A-Za-z]+(?:\^\{?\d\}?)?"
    r"(?:(?:\s*/\s*|\s+per\s+|\s+of\s+|\s*\\cdot\s*|\s+|-)[A-Za-z]+(?:\^\{?\d\}?)?){0,5})\s*$"
)
_WORD = re.compile(r"[A-Za-z]+|\^\{?-?\d+\}?|/|€|%")
_ORDINAL = re.compile(r"(?<=\d)(st|nd|rd|th)$", re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """What stands behind (or, for money, before) a value.

    Attributes:
        dimension: base dimensions and their powers; empty for words that are not known units.
        factor: multiple of the base unit.
        words: stems of unknown words.
        percent: a percent sign.
    """

    dimension: Dimension = ()
    factor: Fraction = Fraction(1)
    words: frozenset[str] = frozenset()
    percent: bool = False

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.dimension or self.words or self.percent)


NO_UNIT = Unit()


class Units:
    """The table of known units."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[Dimension, Fraction]] = {}
        for line in _UNITS.strip().splitlines():
            base, factor, *names = line.split()
            dimension, scale = _DERIVED.get(base, (((base, 1),), Fraction(1)))
            for name in names:
                self.known[name] = (dimension, scale * Fraction(factor))

    def find(self, word: str) -> tuple[Dimension, Fraction] | None:
        """Dimension and factor of a unit's name, singular or plural."""
        if word in _CASED:
            return self.known.get(word)
        low = word.lower()
        for name in (word, low, low[:-1] if low.endswith("s") else low, low[:-2] if low.endswith("es") else low):
            if name in self.known and (name not in _CASED or word in _CASED):
                return self.known[name]
        return None

    def split(self, text: str, loose: bool) -> tuple[str, Unit]:
        """`(value, unit)` of cleaned text. `loose` also takes an unspaced single letter ("5m") for a unit."""
        currency = _CURRENCY_SIGN.match(text)
        dimension: list[tuple[Dimension, Fraction]] = []
        if currency:
            name = _CURRENCY.get(currency.group(2).replace("US", "").strip(), "rupee")
            dimension.append((((name, 1),), Fraction(1)))
            text = currency.group(1) + text[currency.end() :]
        tails: list[str] = []
        while len(tails) < 6:
            tail = self._tail(text, loose)
            if not tail or not text[: len(text) - len(tail)].strip():
                break
            tails.insert(0, tail)
            text = text[: len(text) - len(tail)].rstrip()
        text = _ORDINAL.sub("", text)
        unit = self.parse(" ".join(tails))
        if dimension and not unit.dimension:
            unit = Unit(dimension[0][0], dimension[0][1], unit.words, unit.percent)
        return text.strip(), unit

    def _tail(self, text: str, loose: bool) -> str:
        """The last piece of text that reads as a unit, or ""."""
        for pattern in (_TAIL_GROUP, _TAIL_SYMBOL):
            match = pattern.search(text[-120:])
            if match:
                return match.group()
        match = _TAIL_WORDS.search(text[-120:])
        if not match:
            return ""
        words = match.group(1)
        before = text[: len(text) - len(match.group())]
        spaced = before.endswith((" ", "%"))
        first = re.match(r"[A-Za-z]+", words)
        assert first is not None
        if len(first.group()) == 1 and not (self.find(first.group()) and (spaced or loose)):
            return ""
        if len(first.group()) <= (2 if spaced else 3) and first.group() == words and not self.find(words):
            return ""
        return match.group()

    def parse(self, text: str) -> Unit:
        """A unit from its spelling."""
        text = unwrap_text(text).replace(r"\cdot", " ").replace(r"\$", " dollar ")
        text = re.sub(r"\^?\\circ\s*C\b", " celsius ", text)
        text = re.sub(r"\^?\\circ\s*F\b", " fahrenheit ", text)
        text = text.replace(r"^\circ", " degree ").replace(r"\circ", " degree ").replace("€", " euro ")
        text = re.sub(r"\b(percent|percentage|pct)\b", "%", text, flags=re.IGNORECASE)
        tokens = _WORD.findall(text.replace('"', " inch ").replace("''", " inch ").replace("'", " feet "))
        return self._combine(tokens)

    def _combine(self, tokens: list[str]) -> Unit:
        powers: dict[str, int] = {}
        factor = Fraction(1)
        words: set[str] = set()
        percent = False
        sign, pending = 1, 0
        for i, token in enumerate(tokens):
            low = token.lower()
            if token == "%":
                percent = True
            elif token == "/" or low == "per":
                sign = -1
            elif low in ("square", "sq"):
                pending = 2
            elif low in ("cubic", "cube"):
                pending = 3
            elif token.startswith("^"):
                continue
            elif (known := self.find(token)) is not None and not (low == "in" and _goes_on(tokens, i)):
                following = tokens[i + 1] if i + 1 < len(tokens) else ""
                power = int(following.strip("^{}")) if following.startswith("^") else (pending or 1)
                for base, exponent in known[0]:
                    powers[base] = powers.get(base, 0) + exponent * power * sign
                factor *= known[1] ** (power * sign)
                pending = 0
            elif low not in _EMPTY and low + "s" not in _EMPTY and low.rstrip("s") not in _EMPTY:
                words.add(stem(low))
                pending = 0
        dimension = tuple(sorted((b, p) for b, p in powers.items() if p))
        return Unit(dimension, factor, frozenset(words), percent)


def _goes_on(tokens: list[str], i: int) -> bool:
    """Whether another word follows: "5 in total" is no length."""
    return i + 1 < len(tokens) and not tokens[i + 1].startswith("^")


def stem(word: str) -> str:
    """A word without its plural ending."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    if len(word) > 2 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return {"people": "person", "men": "man", "women": "woman", "children": "child"}.get(word, word)


def conflict(gold: Unit, answer: Unit) -> bool:
    """Whether both say something and it can't be the same thing; percent signs are judged elsewhere."""
    if gold.empty or answer.empty:
        return False
    if gold.percent != answer.percent:
        return True
    if gold.dimension and answer.dimension:
        return gold.dimension != answer.dimension
    if gold.words and answer.words:
        return not (gold.words <= answer.words or answer.words <= gold.words)
    return bool((gold.dimension and answer.words) or (gold.words and answer.dimension))

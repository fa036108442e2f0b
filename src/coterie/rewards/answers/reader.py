"""Read an answer's spelling (after `normalise.clean`) as an exact value: numbers, arithmetic, roots, letters.

A recursive-descent parser that evaluates as it reads. Two readings of `1/2x` exist: (1/2)x and 1/(2x); `tight=True`
takes the second.
"""

from __future__ import annotations

import re
from fractions import Fraction

from coterie.rewards.answers.exact import Undecided, Value, binomial, factorial

MAX_DEPTH = 40
MAX_DIGITS = 4000

_GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "Gamma",
    "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega", "ell", "hbar",
))  # fmt: skip
_NUMBER = (
    r"(?P<repeat>\d*\.\d*\\(?:overline|bar|dot|overset\{\\cdot\})\{\d+\}(?!\d)|\d*\.\d*\(\d+\))"
    r"|(?P<number>(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,6}(?![\dA-Za-z]))?)"
)
_TOKEN = re.compile(
    _NUMBER + r"|(?P<command>\\[a-zA-Z]+)|(?P<letter>[a-zA-Z]'*)|(?P<op>[-+*/^!(){}\[\]_])|(?P<space>\s+)|(?P<other>.)",
    re.DOTALL,
)
_REPEAT = re.compile(r"(\d*)\.(\d*)(?:\\[a-z]+(?:\{\\cdot\})?\{|\()(\d+)")
_ELLIPSIS = re.compile(r"(\d*)\.(\d+)\s*(?:\\ldots|\.\.\.)$")
_TIMES = ("*", r"\cdot", r"\times")
_OPENERS = {"(": ")", "[": "]", "{": "}"}

Token = tuple[str, str]


def read(cleaned: str, tight: bool = False) -> Value:
    """The exact value.

    Raises:
        Undecided: when the text is not arithmetic of the kind that `exact` handles.
    """
    return _Reader(cleaned, tight).whole()


def read_number(cleaned: str) -> Fraction | None:
    """The rational number that the text states, or None."""
    try:
        return read(cleaned).fraction
    except Undecided:
        return None


def ambiguous(cleaned: str) -> bool:
    """Whether `tight` could change the reading."""
    return "/" in cleaned or r"\div" in cleaned


class _Reader:
    def __init__(self, text: str, tight: bool) -> None:
        endless = _ELLIPSIS.match(text.strip())
        if endless:
            text = _spell_out(endless)
        self.tokens = _tokens(text)
        self.at = 0
        self.depth = 0
        self.tight = tight

    def whole(self) -> Value:
        if not self.tokens:
            raise Undecided("empty")
        value = self.sum()
        if self.at < len(self.tokens):
            raise Undecided(f"unexpected {self.tokens[self.at][1]!r}")
        return value

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self) -> Token:
        if self.at >= len(self.tokens):
            raise Undecided("the text ends too early")
        token = self.tokens[self.at]
        self.at += 1
        return token

    def expect(self, text: str) -> None:
        if self.take()[1] != text:
            raise Undecided(f"{text!r} expected")

    def skip_space(self) -> bool:
        spaced = False
        while self.kind() == "space":
            self.at += 1
            spaced = True
        return spaced

    def sum(self) -> Value:
        self.skip_space()
        sign = self.sign()
        value = self.product()
        value = -value if sign < 0 else value
        self.skip_space()
        while self.peek() in ("+", "-"):
            operator = self.take()[1]
            self.skip_space()
            sign = self.sign()
            term = self.product()
            value = value + term if (operator == "+") == (sign > 0) else value - term
            self.skip_space()
        return value

    def sign(self) -> int:
        sign = 1
        while self.peek() in ("+", "-"):
            sign = -sign if self.take()[1] == "-" else sign
            self.skip_space()
        return sign

    def product(self) -> Value:
        value = self.chain()
        while True:
            self.skip_space()
            operator = self.peek()
            if operator in _TIMES or operator in ("/", r"\div"):
                self.take()
                self.skip_space()
                sign = self.sign()
                factor = self.chain()
                factor = -factor if sign < 0 else factor
                value = value * factor if operator in _TIMES else value / factor
            elif self.starts_factor():
                value = value * self.chain()
            else:
                return value

    def chain(self) -> Value:
        """Factors side by side; a whole number before a plain fraction is a mixed number."""
        start = self.at
        value = self.mixed(start, self.factor())
        if not self.tight:
            return value
        while True:
            mark = self.at
            self.skip_space()
            if not self.starts_factor():
                self.at = mark
                return value
            value = value * self.factor()

    def mixed(self, start: int, value: Value) -> Value:
        if self.at != start + 1 or not self.tokens[start][1].isdigit():
            return value
        mark = self.at
        spaced = self.skip_space()
        if self.peek() == r"\frac":
            factor = self.factor()
            fraction = factor.fraction
            return value * factor if fraction is None or fraction <= 0 else value + factor
        elif spaced and self.kind() == "number" and self.peek().isdigit():
            top = int(self.take()[1][:MAX_DIGITS])
            self.skip_space()
            if self.peek() == "/":
                self.take()
                self.skip_space()
                if self.kind() == "number" and self.peek().isdigit():
                    bottom = int(self.take()[1][:MAX_DIGITS])
                    if bottom:
                        return value + Value.number(Fraction(top, bottom))
            raise Undecided("two numbers side by side")
        self.at = mark
        return value

    def starts_factor(self) -> bool:
        """Whether another factor follows without an operator. A number never does: `2 3` is no product."""
        text = self.peek()
        if self.kind() in ("number", "repeat"):
            raise Undecided("a number that follows something without an operator")
        return self.kind() == "letter" or text in ("(", "[", "{") or (self.kind() == "command" and text not in _TIMES)

    def factor(self) -> Value:
        value = self.primary()
        while True:
            mark = self.at
            self.skip_space()
            if self.peek() == "!":
                self.take()
                if self.peek() == "!":
                    raise Undecided("a double factorial")
                value = factorial(value)
            elif self.peek() == "^":
                self.take()
                self.skip_space()
                if self.peek() in (r"\circ", r"\prime"):
                    raise Undecided("degrees")
                value = value.power(self.exponent())
            else:
                self.at = mark
                return value

    def exponent(self) -> Value:
        sign = self.sign()
        value = self.primary()
        self.skip_space()
        if self.peek() == "^":
            raise Undecided("an exponent of an exponent")
        return -value if sign < 0 else value

    def primary(self) -> Value:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Undecided("nested too deeply")
        value = self.atom()
        self.depth -= 1
        return value

    def atom(self) -> Value:
        self.skip_space()
        kind, text = self.take()
        if kind == "number":
            return Value.number(_decimal(text))
        if kind == "repeat":
            return Value.number(_repeating(text))
        if kind == "letter":
            return self.letter(text)
        if text in _OPENERS:
            value = self.sum()
            self.expect(_OPENERS[text])
            return value
        if kind == "command":
            return self.command(text[1:])
        raise Undecided(f"unexpected {text!r}")

    def letter(self, name: str) -> Value:
        if self.peek() == "_":
            self.take()
            name += "_" + self.subscript()
        if self.peek() == "(" and name[0] in "fghPFG":
            raise Undecided("a function")
        return Value.atom(name)

    def subscript(self) -> str:
        kind, text = self.take()
        if text != "{":
            if kind not in ("number", "letter"):
                raise Undecided("a subscript")
            return text
        inner = []
        while self.peek() != "}":
            kind, text = self.take()
            if text == "{":
                raise Undecided("a nested subscript")
            inner.append(text)
        self.take()
        return "".join(inner).replace(" ", "")

    def command(self, name: str) -> Value:
        if name in ("frac", "binom"):
            top, bottom = self.group(), self.group()
            return top / bottom if name == "frac" else binomial(top, bottom)
        if name == "sqrt":
            degree = 2
            self.skip_space()
            if self.peek() == "[":
                self.take()
                index = self.sum().fraction
                self.expect("]")
                if index is None or index.denominator != 1 or not 2 <= index <= 64:
                    raise Undecided("a root's index")
                degree = index.numerator
            return (self.primary() if self.peek() == "(" else self.group()).root(degree)
        if name in ("pi", "imath"):
            return Value.atom("pi" if name == "pi" else "i")
        if name in _GREEK:
            return self.letter("\\" + name)
        raise Undecided(f"\\{name}")

    def group(self) -> Value:
        self.skip_space()
        if self.peek() == "{":
            return self.primary()
        return self.primary() if self.kind() in ("number", "letter", "command") else self._missing()

    def _missing(self) -> Value:
        raise Undecided("an argument is missing")


def _tokens(text: str) -> list[Token]:
    tokens = []
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "other":
            raise Undecided(f"unexpected {match.group()!r}")
        tokens.append((kind, match.group()))
    while tokens and tokens[-1][0] == "space":
        tokens.pop()
    return tokens


def _decimal(text: str) -> Fraction:
    mantissa, _, exponent = text.replace(",", "").lower().partition("e")
    if len(mantissa) > MAX_DIGITS or abs(int(exponent or "0")) > MAX_DIGITS:
        raise Undecided("too many digits")
    whole, _, decimals = mantissa.partition(".")
    value = Fraction(int((whole + decimals) or "0"), 10 ** len(decimals))
    return value * Fraction(10) ** int(exponent or "0")


def _repeating(text: str) -> Fraction:
    match = _REPEAT.match(text)
    if match is None or len(text) > MAX_DIGITS:
        raise Undecided("a repeating decimal")
    whole, fixed, block = match.groups()
    return _from_block(whole, fixed, block)


def _from_block(whole: str, fixed: str, block: str) -> Fraction:
    scale = 10 ** len(fixed)
    return Fraction(int((whole + fixed) or "0"), scale) + Fraction(int(block), scale * (10 ** len(block) - 1))


def _spell_out(match: re.Match[str]) -> str:
    """`0.1666...` with its repeating block written out (which must stand there twice, a single digit three times)."""
    whole, digits = match.groups()
    for size in range(1, min(len(digits) // 2, 12) + 1):
        block = digits[-size:]
        count = 1
        while digits.endswith(block * (count + 1)):
            count += 1
        if count >= (3 if size == 1 else 2):
            fixed = digits[: len(digits) - size * count]
            return f"{whole}.{fixed}\\overline{{{block}}}"
    raise Undecided("an endless decimal whose period is not visible")

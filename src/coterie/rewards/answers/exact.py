"""Exact arithmetic on answers: rational functions over Q with square roots, i, π, e and letters, in no floating point.

A polynomial is a sum of terms `coefficient · √n · a^p · b^q…` with n square-free and integer powers; an expression is a
quotient of two of them. Square roots of different square-free numbers are linearly independent over Q, so two quotients
are equal exactly if cross-multiplying gives the same terms (taking π, e and letters as independent). What does not fit
(logarithms, trigonometry, nested roots, anything too large) raises `Undecided` and is left to the symbolic stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

Atoms = tuple[tuple[str, int], ...]
Key = tuple[int, Atoms]
Poly = dict[Key, Fraction]

MAX_BITS = 32_768
MAX_TERMS = 100
MAX_COST = 20_000
MAX_POWER = 50
MAX_FACTORIAL = 2_500
MAX_RADICAND = 10**8

ONE_KEY: Key = (1, ())


class Undecided(Exception):
    """The expression is outside of what can be decided exactly (or cheaply)."""


@dataclass(frozen=True, eq=False)
class Value:
    """A quotient of polynomials.

    Attributes:
        top: numerator.
        bottom: denominator, never zero.
        cost: work spent on it so far, so that a long text can't take long however it is arranged.
    """

    top: Poly
    bottom: Poly
    cost: int = 0

    def __post_init__(self) -> None:
        if self.cost > MAX_COST:
            raise Undecided("too much work")

    @classmethod
    def number(cls, value: Fraction | int, cost: int = 0) -> Value:
        """A rational number."""
        value = Fraction(value)
        size = max(value.numerator.bit_length(), value.denominator.bit_length())
        return cls(_poly(value), {ONE_KEY: Fraction(1)}, cost + size // 256)

    @classmethod
    def atom(cls, name: str) -> Value:
        """A letter, or one of π ("pi"), e ("e") and the imaginary unit ("i")."""
        return cls({(1, ((name, 1),)): Fraction(1)}, {ONE_KEY: Fraction(1)})

    @property
    def fraction(self) -> Fraction | None:
        """The rational number this is, if it is one."""
        if not self.top:
            return Fraction(0)
        if len(self.top) == len(self.bottom) == 1:
            (top_key, top), (bottom_key, bottom) = next(iter(self.top.items())), next(iter(self.bottom.items()))
            if top_key == bottom_key:
                return top / bottom
        return None

    def same(self, other: Value) -> bool:
        """Whether both are the same function.

        Raises:
            Undecided: when the comparison grows too large.
        """
        return _times(self.top, other.bottom) == _times(other.top, self.bottom)

    def __add__(self, other: Value) -> Value:
        cost = self._cost(other)
        if self.bottom == other.bottom:
            return Value(_plus(self.top, other.top), self.bottom, cost)
        top = _plus(_times(self.top, other.bottom), _times(other.top, self.bottom))
        return Value(top, _times(self.bottom, other.bottom), cost)

    def __neg__(self) -> Value:
        return Value({k: -c for k, c in self.top.items()}, self.bottom, self.cost)

    def __sub__(self, other: Value) -> Value:
        return self + (-other)

    def __mul__(self, other: Value) -> Value:
        cost = self._cost(other)
        return _lowest(Value(_times(self.top, other.top), _times(self.bottom, other.bottom), cost))

    def __truediv__(self, other: Value) -> Value:
        if not other.top:
            raise Undecided("division by zero")
        return self * Value(other.bottom, other.top, other.cost)

    def _cost(self, other: Value) -> int:
        pairs = (len(self.top) + len(self.bottom)) * (len(other.top) + len(other.bottom))
        return self.cost + other.cost + pairs

    def power(self, exponent: Value) -> Value:
        """This to a rational power; roots of rational numbers only."""
        p = exponent.fraction
        if p is None:
            raise Undecided("an exponent that is not a number")
        if p.denominator != 1:
            if p.numerator.bit_length() > 20:
                raise Undecided("exponent too large")
            return self.root(p.denominator).power(Value.number(p.numerator))
        return self._integer_power(p.numerator)

    def _integer_power(self, n: int) -> Value:
        if n < 0:
            if not self.top:
                raise Undecided("division by zero")
            return Value(self.bottom, self.top, self.cost)._integer_power(-n)
        value = self.fraction
        if value is not None:
            size = max(value.numerator.bit_length(), value.denominator.bit_length())
            if size > 1 and n * size > MAX_BITS:
                raise Undecided("a number too large")
            return Value.number(value**n, self.cost)
        if n > MAX_POWER:
            raise Undecided("exponent too large")
        result, base = Value.number(1), Value(self.top, self.bottom)
        for bit in bin(n)[2:]:
            result = result * result
            if bit == "1":
                result = result * base
        return Value(result.top, result.bottom, result.cost + self.cost)

    def root(self, degree: int) -> Value:
        """The real root of a rational number; of a negative one the square root is a multiple of i."""
        value = self.fraction
        if value is None or degree < 2 or degree > 64:
            raise Undecided("a root of something that is not a rational number")
        sign = 1
        if value < 0:
            if degree % 2 == 0 and degree != 2:
                raise Undecided("an even root of a negative number")
            sign, value = -1, -value
        top, bottom = _exact_root(value.numerator, degree), _exact_root(value.denominator, degree)
        if top is not None and bottom is not None:
            rooted = Value.number(Fraction(top, bottom), self.cost)
        elif degree == 2:
            outside, inside = _square_part(value.numerator * value.denominator)
            rooted = Value(_poly(Fraction(outside, value.denominator), inside), {ONE_KEY: Fraction(1)}, self.cost + 20)
        else:
            raise Undecided("a root that is not a square root")
        if sign > 0:
            return rooted
        return -rooted if degree % 2 else rooted * Value.atom("i")


def factorial(value: Value) -> Value:
    """n! of a small natural number."""
    n = value.fraction
    if n is None or n.denominator != 1 or not 0 <= n <= MAX_FACTORIAL:
        raise Undecided("a factorial of something that is not a small natural number")
    return Value.number(math.factorial(n.numerator))


def binomial(top: Value, bottom: Value) -> Value:
    """The binomial coefficient of small natural numbers."""
    n, k = top.fraction, bottom.fraction
    if n is None or k is None or n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n <= MAX_FACTORIAL:
        raise Undecided("a binomial coefficient of something that is not a small natural number")
    return Value.number(math.comb(n.numerator, k.numerator))


def _poly(coefficient: Fraction, radicand: int = 1) -> Poly:
    return {(radicand, ()): coefficient} if coefficient else {}


def _plus(a: Poly, b: Poly) -> Poly:
    out = dict(a)
    for key, coefficient in b.items():
        total = out.get(key, Fraction(0)) + coefficient
        if total:
            out[key] = _checked(total)
        else:
            out.pop(key, None)
    return _few(out)


def _times(a: Poly, b: Poly) -> Poly:
    if len(a) * len(b) > MAX_COST:
        raise Undecided("too many terms")
    out: Poly = {}
    for (m, atoms), x in a.items():
        for (n, others), y in b.items():
            common = math.gcd(m, n)
            radicand = (m // common) * (n // common)
            if radicand > MAX_RADICAND:
                raise Undecided("a radicand too large")
            merged, sign = _merge(atoms, others)
            key = (radicand, merged)
            total = out.get(key, Fraction(0)) + x * y * common * sign
            if total:
                out[key] = _checked(total)
            else:
                out.pop(key, None)
    return _few(out)


def _merge(a: Atoms, b: Atoms) -> tuple[Atoms, int]:
    """Product of two power products; i² = -1."""
    if not a or not b:
        merged = dict(a or b)
    else:
        merged = dict(a)
        for name, power in b:
            merged[name] = merged.get(name, 0) + power
    sign = 1
    if merged.get("i", 0) > 1:
        sign = -1 if merged["i"] % 4 in (2, 3) else 1
        merged["i"] %= 2
    return tuple(sorted((name, power) for name, power in merged.items() if power)), sign


def _lowest(value: Value) -> Value:
    """Rational numbers keep denominator 1, so that they stay small."""
    if len(value.bottom) == 1 and len(value.top) <= 1:
        number = value.fraction
        if number is not None:
            return Value.number(number, value.cost)
    return value


def _checked(number: Fraction) -> Fraction:
    if number.numerator.bit_length() > MAX_BITS or number.denominator.bit_length() > MAX_BITS:
        raise Undecided("a number too large")
    return number


def _few(poly: Poly) -> Poly:
    if len(poly) > MAX_TERMS:
        raise Undecided("too many terms")
    return poly


def _exact_root(n: int, degree: int) -> int | None:
    if n < 2:
        return n
    if degree == 2:
        root = math.isqrt(n)
        return root if root * root == n else None
    if n.bit_length() > 4096:
        raise Undecided("a radicand too large")
    low, high = 1, 1 << (n.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**degree < n:
            low = middle + 1
        else:
            high = middle
    return low if low**degree == n else None


def _square_part(n: int) -> tuple[int, int]:
    """n = outside² · inside with inside square-free."""
    if n > MAX_RADICAND:
        raise Undecided("a radicand too large")
    outside, inside, factor = 1, 1, 2
    while factor * factor <= n:
        while n % (factor * factor) == 0:
            n //= factor * factor
            outside *= factor
        if n % factor == 0:
            n //= factor
            inside *= factor
        factor += 1
    return outside, inside * n

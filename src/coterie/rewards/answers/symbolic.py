"""The symbolic stage: latex2sympy reads, sampling at 50 digits decides, math-verify compares sets and relations.

Runs in a worker process only (`serve`), never in the trainer: parsing and simplifying model text may take any time and
any memory. Nothing here evaluates text as code; the worker refuses it as well.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import math_verify
import sympy
import sympy.physics.units
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

from coterie.rewards.answers.decide import Judge
from coterie.rewards.answers.policy import Policy
from coterie.rewards.answers.reader import read_number
from coterie.rewards.answers.units import Units
from coterie.rewards.worker_main import Handler, Mark, RefusedError

_DIGITS = 50
_TINY = sympy.Float("1e-30", _DIGITS)
_AGREE = sympy.Float("1e-25", _DIGITS)
_NEEDED_POINTS = 4
_EVALUATION_ERRORS = (
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    NotImplementedError,
    RecursionError,
    RefusedError,
)
_CONFIG = ConversionConfig(lowercase_symbols=False)
_COMPLEX = re.compile(r"(?<![a-zA-Z\\])i(?![a-zA-Z])")
_DECIMAL = re.compile(
    r"(?<![\d.])(?:\d*\.\d*\\(?:overline|bar|dot)\{\d+\}|\d*\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)(?![\d.])"
)
_MIXED = re.compile(r"(?<![\d.}^_{])(\d+) +(\d+) */ *(\d+)(?!\d)")
_CALL = re.compile(r"(?<![a-zA-Z\\])([a-eh-zA-EH-OQ-Z])(?=\()")
_PRODUCT = re.compile(r"(?<=\))(?=\()|(?<=\d)(?=\()|(?<=\))(?=[a-zA-Z\\\d](?!e(?![a-z])))")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) *%")
_DEGREES = re.compile(r"\^\\circ")
_SQRT_PAREN = re.compile(r"\\sqrt\(([^()]*)\)")
_POINTS = ("17/10", "3/7", "29/11", "23/5", "2", "3", "5", "7", "-13/10", "-7/3", "-19/4")
_COUNTS = ("1", "2", "3", "4", "6", "9")


_WARM_UP = (
    (r"\sin 30^\circ + \ln 2", r"\cos 60^\circ + \log 2"),
    (r"e^{2x}", r"(e^x)^2"),
    (r"(-\infty, -2) \cup (2, \infty)", "|x|>2"),
    (r"\sqrt{x^2} < 3", r"|x| < 3"),
    (r"f(x)+1", r"1+f(x)+\sin 0"),
)


class _Reader(_Latex2Sympy):
    """latex2sympy with exact numbers: its own way to a number goes through `eval`."""

    def parse_number(self, text: str) -> Any:
        return sympy.Rational(Fraction(text.replace(",", "")))


def serve() -> Handler:
    """Factory for `coterie.rewards.workers`: `(gold, answer, kind, policy)` to `[correct, stage, reason]`."""
    units = Units()

    def handle(request: Any, mark: Mark) -> Any:
        gold, answer, kind, policy = request
        judge = Judge(policy, Sympy(policy, mark), units)
        correct = judge.decide(gold, answer, kind)
        return [bool(correct), judge.stage, judge.reason]

    # What sympy imports and generates on first use must be there before the worker refuses code generation.
    for gold, answer in _WARM_UP:
        handle((gold, answer, "auto", Policy()), lambda text: None)
    return handle


class Sympy:
    """`decide.Symbolic` with sympy behind it.

    Args:
        policy: tolerance and log base.
        mark: told what begins: "gold" and "answer" (reading them), "compare"; so a time-out or error has an owner.
    """

    def __init__(self, policy: Policy, mark: Mark) -> None:
        self.policy, self.mark = policy, mark

    def values(self, gold: str, answer: str) -> bool:
        """Whether two expressions, sets or relations are equal, under any reading of `\\log` that the policy allows."""
        for base in self._bases(gold + answer):
            self.mark("gold")
            g = read(gold, base)
            self.mark("answer")
            a = read(answer, base)
            self.mark("compare")
            if g is not None and a is not None and self._same(g, a):
                return True
        return False

    def equations(self, gold: tuple[str, str], answer: tuple[str, str]) -> bool:
        """Whether one equation is a constant multiple of the other."""
        self.mark("gold")
        g = [read(side, "10") for side in gold]
        self.mark("answer")
        a = [read(side, "10") for side in answer]
        self.mark("compare")
        if not all(_scalar(side) for side in g + a):
            return False
        gold_zero, answer_zero = g[0] - g[1], a[0] - a[1]
        if gold_zero.free_symbols != answer_zero.free_symbols or not gold_zero.free_symbols:
            return False
        ratios = []
        for point in _points(gold_zero.free_symbols):
            x, y = _value(gold_zero, point), _value(answer_zero, point)
            if x is None or y is None or min(abs(x), abs(y)) < _TINY:
                continue
            ratios.append(y / x)
        return len(ratios) >= _NEEDED_POINTS and all(_close(r, ratios[0], 0.0) for r in ratios)

    def _bases(self, text: str) -> tuple[str, ...]:
        if not re.search(r"\\log(?!_|[a-zA-Z])", text):
            return ("10",)
        return ("10", "e") if self.policy.log_base == "any" else (self.policy.log_base,)

    def _same(self, gold: Any, answer: Any) -> bool:
        if _scalar(gold) and _scalar(answer):
            sampled = self._sampled(gold, answer)
            if sampled is not None:
                return sampled
        elif _scalar(gold) or _scalar(answer):
            return False
        return bool(math_verify.verify(gold, answer, timeout_seconds=None, allow_set_relation_comp=True))

    def _sampled(self, gold: Any, answer: Any) -> bool | None:
        """Compare values at fixed points; None when too few points have a value on both sides."""
        if gold.atoms(sympy.core.function.AppliedUndef) or answer.atoms(sympy.core.function.AppliedUndef):
            return None
        symbols = gold.free_symbols | answer.free_symbols
        if not symbols:
            x, y = _value(gold, {}), _value(answer, {})
            return None if x is None or y is None else self._close_constants(x, y, gold, answer)
        imaginary = gold.has(sympy.I) or answer.has(sympy.I)
        agreed = 0
        counting = gold.has(sympy.Sum, sympy.Product) or answer.has(sympy.Sum, sympy.Product)
        for point in _points(symbols, _COUNTS if counting else _POINTS):
            x, y = _value(gold, point), _value(answer, point)
            if x is None or y is None or not (imaginary or (_real(x) and _real(y))):
                continue
            if not _close(x, y, self._width(x)):
                return False
            agreed += 1
        return True if agreed >= _NEEDED_POINTS else None

    def _close_constants(self, x: Any, y: Any, gold: Any, answer: Any) -> bool:
        if _close(x, y, self._width(x)):
            return True
        small = max(abs(x), abs(y)) < _TINY
        return bool(small and sympy.simplify(gold - answer) == 0)

    def _width(self, gold: Any) -> float:
        if self.policy.tolerance == "none":
            return 0.0
        width = self.policy.tolerance_value
        return width * float(abs(gold)) if self.policy.tolerance == "rel" else width


@functools.lru_cache(maxsize=512)
def read(text: str, log_base: str) -> Any:
    """The sympy object of a cleaned text.

    Raises:
        Exception: whatever latex2sympy raises for text that it can't read.
    """
    latex = spell(text, log_base)
    value = _Reader(None, True, True, _CONFIG).parse(latex)
    if not isinstance(value, sympy.Basic | sympy.MatrixBase):
        raise ValueError(f"not mathematics: {text[:80]!r}")
    bound = {s for f in value.atoms(sympy.Sum, sympy.Product, sympy.Integral) for s in f.bound_symbols}
    unit = [s for s in value.free_symbols - bound if getattr(s, "name", "") == "i"]
    if unit and _COMPLEX.search(text):
        value = value.xreplace({unit[0]: sympy.I})
    return value.doit() if isinstance(value, sympy.MatrixBase | sympy.MatrixExpr | sympy.Limit) else value


def spell(text: str, log_base: str) -> str:
    """LaTeX that latex2sympy reads as meant: no decimals, mixed numbers, percent signs or function-like products."""
    text = _PERCENT.sub(r"\\frac{\1}{100}", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _SQRT_PAREN.sub(r"\\sqrt{\1}", text)
    text = _DECIMAL.sub(_fraction, text)
    text = _CALL.sub(r"\1 \\cdot ", text)
    text = _DEGREES.sub(r"^{\\circ}", text)
    if log_base == "e":
        text = re.sub(r"\\log(?!_|[a-zA-Z])", r"\\ln", text)
    return text.replace(r"\operatorname", "").replace("%", r"\%")


def _fraction(match: re.Match[str]) -> str:
    value = read_number(match.group())
    if value is None:
        return match.group()
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _points(symbols: set[Any], numbers: tuple[str, ...] = _POINTS) -> Iterator[dict[Any, Any]]:
    """Deterministic points at which expressions in these symbols are compared."""
    ordered = sorted(symbols, key=str)
    for shift in range(len(numbers)):
        yield {s: sympy.Rational(numbers[(shift + 3 * i) % len(numbers)]) for i, s in enumerate(ordered)}


def _value(expression: Any, point: dict[Any, Any]) -> Any:
    """The number at a point, or None where there is none."""
    try:
        value = expression.evalf(_DIGITS, subs=point)
        if not value.is_number or value.free_symbols:
            value = expression.subs(point).doit().evalf(_DIGITS)
    except _EVALUATION_ERRORS:
        return None
    if not getattr(value, "is_number", False) or value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return None
    re_part, im_part = value.as_real_imag()
    return value if re_part.is_Number and im_part.is_Number else None


def _scalar(value: Any) -> bool:
    return isinstance(value, sympy.Expr) and not isinstance(value, sympy.MatrixBase | sympy.MatrixExpr)


def _real(value: Any) -> bool:
    return abs(sympy.im(value)) <= _AGREE * max(abs(value), 1)


def _close(x: Any, y: Any, width: float) -> bool:
    distance = abs(x - y)
    if distance == 0 or getattr(distance, "_prec", _DIGITS) == 1:
        return True
    return bool(distance <= max(_AGREE * max(abs(x), abs(y)), width))

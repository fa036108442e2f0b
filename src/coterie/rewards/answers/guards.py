"""What is never handed to the symbolic stage: text that it would misread, and towers that it would never finish.

The worker's deadline is the real protection; these refusals save the deadline's seconds and the symbolic stage's
known mistakes.
"""

from __future__ import annotations

import re

MAX_NESTING = 100
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 10_000

_SIDE_BY_SIDE = re.compile(r"(?<![_\d])\d+\s+\d")
_FACTORIAL = re.compile(r"(?<!\d)(\d+)\s*!")
_DOUBLE_FACTORIAL = re.compile(r"!\s*!")
_EXPONENT = re.compile(r"\^\s*\{?\s*-?\s*(\d+)")
_TOWER = re.compile(r"\^\s*\{?[^{}^]*\^")
_UNKNOWN = re.compile(
    r"[@#;?`\"\x00-\x08]|__|\\(?:text|input|include|write|def|let|csname|catcode|immediate)(?![a-zA-Z])"
)


def refusal(text: str) -> str:
    """Why this cleaned expression is not evaluated symbolically, or ""."""
    if _UNKNOWN.search(text):
        return "refused: not mathematics"
    if nesting(text) > MAX_NESTING:
        return "refused: nested too deeply"
    if _SIDE_BY_SIDE.search(_without_mixed(text)):
        return "refused: numbers side by side"
    if _DOUBLE_FACTORIAL.search(text):
        return "refused: factorial of a factorial"
    for match in _FACTORIAL.finditer(text):
        if len(match.group(1)) > 6 or int(match.group(1)) > MAX_FACTORIAL:
            return "refused: factorial too large"
    for match in _EXPONENT.finditer(text):
        if len(match.group(1)) > 6 or int(match.group(1)) > MAX_EXPONENT:
            return "refused: exponent too large"
    return _tower(text)


def nesting(text: str) -> int:
    """Deepest level of brackets."""
    depth = deepest = 0
    for c in text:
        if c in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif c in ")]}":
            depth -= 1
    return deepest


def _without_mixed(text: str) -> str:
    """Mixed numbers are the one case where numbers stand side by side."""
    return re.sub(r"(?<!\d)(\d+) +(\d+ */ *\d+)", r"\1+\2", text)


def _tower(text: str) -> str:
    """Exponents of exponents: fold the innermost numeric power and look at its size."""
    for match in _TOWER.finditer(text):
        inner = re.match(
            r"\^\s*\{?\s*\(?\s*(\d+)\s*\^\s*\{?\s*(\d+|\{?\s*\d+\s*\^)",
            match.group() + text[match.end() : match.end() + 40],
        )
        if not inner:
            continue
        base, exponent = inner.group(1), inner.group(2)
        if not exponent.isdigit() or len(base) > 6 or len(exponent) > 3:
            return "refused: exponent too large"
        if int(base) ** int(exponent) > MAX_EXPONENT:
            return "refused: exponent too large"
    return ""

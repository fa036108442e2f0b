"""The outer structure of an answer: a value, a list, tuple or set, a matrix, an equation, a region of the line.

Only the outside is read here; items stay text and are read when they are compared. `1,000` has two readings (a number,
a list); `readings` gives both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from coterie.rewards.answers.normalise import canonical, enclosed, unwrap_text
from coterie.rewards.answers.reader import read_number


@dataclass(frozen=True)
class Leaf:
    """One value."""

    text: str


@dataclass(frozen=True)
class Items:
    """Several values: "(" and "[" keep their order, "{" and "" (a bare list) do not."""

    kind: Literal["", "(", "[", "{"]
    items: tuple[str, ...]


@dataclass(frozen=True)
class Interval:
    """Ends and whether they belong to it."""

    low: str
    high: str
    low_closed: bool
    high_closed: bool


@dataclass(frozen=True)
class Region:
    """A union of intervals, from interval notation or from inequalities in `name` ("" when none is given)."""

    name: str
    parts: tuple[Interval, ...]


@dataclass(frozen=True)
class Equation:
    """`left = right`; `name` is the left side when that is a name (x, f(x), an area)."""

    left: str
    right: str
    name: str


@dataclass(frozen=True)
class Matrix:
    """Rows of entries."""

    rows: tuple[tuple[str, ...], ...]


Form = Leaf | Items | Region | Equation | Matrix

_AND, _OR = "\x01", "\x02"
_JOINERS = re.compile(
    r"\\(?:text|mbox|mathrm)\{\s*,?\s*(and|or)\s*\}|(?<![A-Za-z\\])(and|or)(?![A-Za-z])|\\(land|lor)(?![a-zA-Z])"
)
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_MATRIX = re.compile(r"^\\begin\{([pbBvV]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}$", re.DOTALL)
_RELATION = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|\\ne(?![a-zA-Z])|<|>")
_VARIABLE = r"(?:[a-zA-Z]|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|varepsilon|ell))(?:_\{?\w+\}?)?'*"
_NAME = re.compile(
    rf"^(?:{_VARIABLE}|{_VARIABLE}\([^()=]*\)|[a-zA-Z]{{1,2}}\^\{{-1\}}\([^()=]*\)|\|?[A-Z]{{1,3}}\|?|m?\s*\\angle\s*[A-Z]{{1,3}}"
    rf"|\([a-zA-Z](?:, ?[a-zA-Z])+\)|\\(?:overline|vec|hat|mathbf|overrightarrow)\{{[^{{}}]*\}}|\[[A-Z]+\]"
    rf"|\\text\{{[^{{}}]*\}}(?:_\{{?\w+\}}?)?|[A-Za-z ]+)$"
)
_PLAIN_VARIABLE = re.compile(rf"^{_VARIABLE}$")
_MEMBER = re.compile(rf"^({_VARIABLE}|\([^()]*\))\s*\\in(?![a-zA-Z])\s*(.*)$", re.DOTALL)
_BUILDER = re.compile(
    rf"^\\\{{\s*({_VARIABLE})\s*(?:\\in\s*\\mathbb\{{R\}}\s*)?(?:\||:|\\text\{{\s*such that\s*\}})(.*)\\\}}$", re.DOTALL
)
_REALS = re.compile(r"^(?:\\mathbb\{R\}|all\s+reals?(?:\s+numbers?)?|\(-\\infty\s*,\s*\+?\\infty\s*\))$")
_REALS_LESS = re.compile(r"^\\mathbb\{R\}\s*(?:\\setminus|-)\s*\\\{(.*)\\\}$")
_ONLY_WORDS = re.compile(r"^\\(?:text|mbox|mathrm|textbf)\{[^{}]*\}$")
_OUTWARD = re.compile(r"^(?:\](?=.*[\[\]]$)|\[(?=.*\[$))([^\[\],;]+)[,;]([^\[\],;]+)[\[\]]$")
_CLOSE = {"(": ")", "[": "]"}


def readings(cleaned: str) -> list[Form]:
    """The forms that the text may mean, most likely first."""
    forms = [parse(cleaned, thousands=True)]
    if _THOUSANDS.search(cleaned):
        other = parse(cleaned, thousands=False)
        if other != forms[0]:
            forms.append(other)
    return forms


def parse(text: str, thousands: bool = True) -> Form:
    """The outer structure of cleaned text."""
    text = _unparenthesised(text.strip(), thousands)
    plain = unwrap_text(text).lower()
    if _REALS.match(text) or _REALS.match(plain):
        return Region("", (Interval(r"-\infty", r"\infty", False, False),))
    outward = _OUTWARD.match(text)
    if outward:
        closed = text[0] == "[", text[-1] == "]"
        return Region("", (Interval(outward.group(1).strip(), outward.group(2).strip(), *closed),))
    matrix = _MATRIX.match(text)
    if matrix:
        return _matrix(matrix.group(2))
    builder = _BUILDER.match(text)
    if builder:
        inner = parse(builder.group(2), thousands)
        return Region("", inner.parts) if isinstance(inner, Region) else Leaf(text)
    if _ONLY_WORDS.match(text):
        text = text[text.index("{") + 1 : -1].strip()
    marked = _JOINERS.sub(lambda m: _AND if "and" in m.group() else _OR, text)
    parts, joints = split(marked, (",", ";", _AND, _OR), thousands)
    if len(parts) > 1:
        return _list(parts, joints, text, thousands)
    return _single(parts[0] if parts else text, thousands)


def split(text: str, separators: Sequence[str], thousands: bool) -> tuple[list[str], list[str]]:
    """Pieces between separators outside of brackets, and those separators; empty pieces are dropped."""
    kept = {i for m in _THOUSANDS.finditer(text) for i in range(*m.span()) if text[i] == ","} if thousands else set()
    pieces, joints, depth, start, i = [], [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c == "\\":
            if text[i + 1 : i + 2] in ("{", "}"):
                depth += 1 if text[i + 1] == "{" else -1
            elif text.startswith(("\\langle", "\\rangle"), i):
                depth += 1 if text.startswith("\\langle", i) else -1
            i += 2
            continue
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif depth <= 0 and c in separators and i not in kept:
            pieces.append(text[start:i].strip())
            joints.append(c)
            start = i + 1
        i += 1
    pieces.append(text[start:].strip())
    joints = [j for piece, j in zip(pieces, joints, strict=False) if piece]
    return [p for p in pieces if p], joints


def _list(parts: list[str], joints: list[str], text: str, thousands: bool) -> Form:
    forms = [parse(p, thousands) for p in parts]
    if all(isinstance(f, Region) for f in forms) and len(set(joints) - {",", ";"}) == 1:
        merged = _merge([f for f in forms if isinstance(f, Region)], _AND in joints)
        if merged is not None:
            return merged
    return Items("", tuple(p.replace(_AND, " and ").replace(_OR, " or ") for p in parts))


def _overlap(regions: list[Region]) -> bool:
    """Whether these are two half-lines that face each other (`x > 1, x < 4`), so that both hold."""
    parts = [p for r in regions for p in r.parts]
    lows = [p for p in parts if p.high == r"\infty"]
    highs = [p for p in parts if p.low == r"-\infty"]
    if len(parts) != 2 or len(lows) != 1 or len(highs) != 1:
        return False
    low, high = read_number(lows[0].low), read_number(highs[0].high)
    return low is not None and high is not None and low < high


def _merge(regions: list[Region], both: bool) -> Region | None:
    names = {r.name for r in regions if r.name}
    if len(names) > 1:
        return None
    name = next(iter(names), "")
    if not both:
        return Region(name, tuple(p for r in regions for p in r.parts))
    if len(regions) == 2 and all(len(r.parts) == 1 for r in regions):
        a, b = regions[0].parts[0], regions[1].parts[0]
        if a.low == r"-\infty":
            a, b = b, a
        if a.high == r"\infty" and b.low == r"-\infty":
            return Region(name, (Interval(a.low, b.high, a.low_closed, b.high_closed),))
    return None


def _single(text: str, thousands: bool) -> Form:
    unions, _ = split(text.replace(r"\cup", "\x03"), ("\x03",), thousands)
    if len(unions) > 1:
        parts = [_region_part(parse(u, thousands)) for u in unions]
        if all(parts):
            return Region("", tuple(i for p in parts for i in p))
    member = _MEMBER.match(text)
    if member:
        inner = parse(member.group(2), thousands)
        part = _region_part(inner)
        name = member.group(1)
        if part and not (isinstance(inner, Items) and (inner.kind == "{" or name.startswith("("))):
            return Region(canonical(name), part)
        return inner
    less = _REALS_LESS.match(text)
    if less:
        holes = _without(split(less.group(1), (",",), thousands)[0])
        return Region("", holes) if holes else Leaf(text)
    related = _inequality(text)
    if related is not None:
        return related
    equation = _equation(text)
    if equation is not None:
        return equation
    bracketed = _bracketed(text, thousands)
    if bracketed is not None:
        return bracketed
    if r"\pm" in text and r"\mp" not in text:
        return Items("", (text.replace(r"\pm", "+"), text.replace(r"\pm", "-")))
    return Leaf(text)


def _region_part(form: Form) -> tuple[Interval, ...]:
    if isinstance(form, Region):
        return form.parts
    if isinstance(form, Items) and form.kind in ("(", "[") and len(form.items) == 2:
        closed = form.kind == "["
        return (Interval(form.items[0], form.items[1], closed, closed),)
    if isinstance(form, Items) and form.kind == "{":
        return tuple(Interval(i, i, True, True) for i in form.items)
    return ()


def as_region(form: Form) -> Region | None:
    """A region, also from `(a, b)`, `[a, b]` and a list of regions ("x < 1, x > 2")."""
    if isinstance(form, Items) and form.kind == "{":
        return None
    if isinstance(form, Items) and form.kind == "":
        regions = [as_region(parse(item)) for item in form.items]
        found = [r for r in regions if r is not None]
        return _merge(found, _overlap(found)) if len(found) == len(regions) else None
    parts = _region_part(form)
    return Region(form.name if isinstance(form, Region) else "", parts) if parts else None


def _without(holes: list[str]) -> tuple[Interval, ...]:
    values = [read_number(h) for h in holes]
    if not holes or any(v is None for v in values):
        return ()
    ordered = [h for _, h in sorted(zip(values, holes, strict=True), key=lambda pair: pair[0] or 0)]
    ends = [r"-\infty", *ordered, r"\infty"]
    return tuple(Interval(a, b, False, False) for a, b in pairwise(ends))


def _inequality(text: str) -> Form | None:
    """A region from `a < x ≤ b`, `x > a`, `a ≥ x` or `x ≠ a`, with a bare variable."""
    if not _RELATION.search(text) or "=" in text:
        return None
    sides = [s.strip() for s in _RELATION.split(text)]
    signs = _RELATION.findall(text)
    if len(sides) == 3 and _PLAIN_VARIABLE.match(sides[1]) and sides[0] and sides[2]:
        if all(s in ("<", r"\le") for s in signs):
            low, high, first, second = sides[0], sides[2], signs[0], signs[1]
        elif all(s in (">", r"\ge") for s in signs):
            low, high, first, second = sides[2], sides[0], signs[1], signs[0]
        else:
            return None
        interval = Interval(low, high, first in (r"\le", r"\ge"), second in (r"\le", r"\ge"))
        return Region(canonical(sides[1]), (interval,))
    if len(sides) != 2 or not all(sides):
        return None
    left, right, sign = sides[0], sides[1], signs[0]
    if not _PLAIN_VARIABLE.match(left):
        if not _PLAIN_VARIABLE.match(right):
            return None
        left, right = right, left
        sign = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}.get(sign, sign)
    if re.search(rf"(?<![a-zA-Z\\]){re.escape(left)}(?![a-zA-Z])", right):
        return None
    if sign == r"\ne":
        holes = _without([right])
        return Region(canonical(left), holes) if holes else None
    if sign in ("<", r"\le"):
        interval = Interval(r"-\infty", right, False, sign == r"\le")
    else:
        interval = Interval(right, r"\infty", sign == r"\ge", False)
    return Region(canonical(left), (interval,))


def _equation(text: str) -> Equation | None:
    sides, _ = split(text, ("=",), thousands=True)
    if len(sides) < 2 or _RELATION.search(text):
        return None
    left, right = sides[0], sides[-1]
    if _NAME.match(left):
        return Equation(left, right, canonical(left))
    if _PLAIN_VARIABLE.match(right) and len(sides) == 2:
        return Equation(right, left, canonical(right))
    return Equation(left, right, "")


def _bracketed(text: str, thousands: bool) -> Form | None:
    if text.startswith(r"\langle") and text.endswith(r"\rangle"):
        return Items("(", tuple(split(text[7:-7], (",",), thousands)[0]))
    if text.startswith(r"\{") and text.endswith(r"\}"):
        items, _ = split(text[2:-2], (",", ";"), thousands)
        return Items("{", tuple(items)) if items else Leaf(r"\emptyset")
    if len(text) < 2 or text[0] not in "([" or text[-1] not in ")]":
        return None
    inner = text[1:-1]
    if not _balanced(inner):
        return None
    items, _ = split(inner, (",", ";"), thousands)
    if len(items) < 2:
        return None
    if text[-1] == _CLOSE[text[0]]:
        infinite = len(items) == 2 and (r"\infty" in items[0] or r"\infty" in items[1])
        if infinite:
            return Region("", (Interval(items[0], items[1], text[0] == "[", text[-1] == "]"),))
        return Items("(" if text[0] == "(" else "[", tuple(items))
    if len(items) == 2:
        return Region("", (Interval(items[0], items[1], text[0] == "[", text[-1] == "]"),))
    return None


def _balanced(text: str) -> bool:
    depth = 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if depth < 0:
            return False
    return depth == 0


def _unparenthesised(text: str, thousands: bool) -> str:
    """Without brackets around a single value, and without braces around everything."""
    while len(text) > 2:
        if text[0] == "(" and text[-1] == ")" and _balanced(text[1:-1]):
            if len(split(text[1:-1], (",", ";"), thousands)[0]) > 1:
                return text
            text = text[1:-1].strip()
        elif enclosed(text):
            text = text[1:-1].strip()
        else:
            return text
    return text


def _matrix(body: str) -> Matrix:
    rows = [r for r in re.split(r"\\\\(?:\[[^\[\]]*\])?|\\cr(?![a-zA-Z])", body) if r.strip()]
    return Matrix(tuple(tuple(cell.strip() for cell in row.replace(r"\hline", "").split("&")) for row in rows))

"""Whether an answer says the same as the gold: everything that needs no algebra system, in microseconds.

The result is True, False, or None when only the symbolic stage can tell. The same code runs in the main process (with
`Symbolic` answering None) and in a worker (with it answering), so lists and tuples of symbolic items need no second set
of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Protocol

from coterie.rewards.answers import special
from coterie.rewards.answers.exact import Undecided, Value
from coterie.rewards.answers.forms import Equation, Form, Interval, Items, Leaf, Matrix, Region, as_region, readings
from coterie.rewards.answers.guards import refusal
from coterie.rewards.answers.normalise import canonical, clean
from coterie.rewards.answers.policy import Kind, Policy
from coterie.rewards.answers.reader import ambiguous, read
from coterie.rewards.answers.units import NO_UNIT, Unit, Units, conflict

Answer = bool | None
MAX_ITEMS = 64
MAX_NESTING = 6


class Symbolic(Protocol):
    """The last resort; both methods may answer None ("not here")."""

    def values(self, gold: str, answer: str) -> Answer:
        """Whether two expressions, sets or relations are equal."""
        ...

    def equations(self, gold: tuple[str, str], answer: tuple[str, str]) -> Answer:
        """Whether two equations have the same solutions (one is a multiple of the other)."""
        ...


class Elsewhere:
    """The symbolic stage seen from the main process: undecided."""

    def values(self, gold: str, answer: str) -> Answer:
        """Undecided."""
        return None

    def equations(self, gold: tuple[str, str], answer: tuple[str, str]) -> Answer:
        """Undecided."""
        return None


@dataclass
class Judge:
    """One comparison under a policy.

    Attributes:
        policy: the switches.
        symbolic: the symbolic stage.
        stage, reason: what decided last.
    """

    policy: Policy
    symbolic: Symbolic
    units: Units
    stage: str = "text"
    reason: str = ""
    depth: int = 0

    def decide(self, gold: str, answer: str, kind: Kind = "auto") -> Answer:
        """Compare the gold's text with the answer's."""
        if len(answer) > self.policy.max_chars or len(gold) > self.policy.max_chars:
            same = "".join(answer.split()) == "".join(gold.split())
            return self._say(same, "text", "same text" if same else f"long: over {self.policy.max_chars} characters")
        gold, answer = clean(gold), clean(answer)
        if not answer:
            return self._say(False, "text", "empty")
        if canonical(gold) == canonical(answer):
            return self._say(True, "text", "same text")
        if kind == "text":
            return self._say(special.same_words(gold, answer), "text", "words")
        letter = special.choice(gold, answer, insist=kind == "choice")
        if letter is not None:
            return self._say(letter, "text", "choice")
        gold, answer = special.without_letter(gold), special.without_letter(answer)
        if special.negated(answer) != special.negated(gold):
            return self._say(False, "guard", "negated")
        return self.same(gold, answer)

    def same(self, gold: str, answer: str) -> Answer:
        """Compare two cleaned texts by their forms; any pair of readings may match."""
        if canonical(gold) == canonical(answer):
            return self._say(True, "text", "same text")
        if self.depth >= MAX_NESTING:
            return self._say(False, "guard", "nested")
        whole = special.compare(gold, answer)
        if whole is not None:
            return self._say(whole, "text", "clock, ratio or base")
        exact, _, approximate = answer.partition(r"\approx")
        if approximate and r"\approx" not in gold:
            answer = approximate.strip() if special.is_decimal(gold) else exact.strip()
        self.depth += 1
        try:
            return self._any(partial(self.forms, g, a, gold, answer) for g in readings(gold) for a in readings(answer))
        finally:
            self.depth -= 1

    def forms(self, gold: Form, answer: Form, gold_text: str, answer_text: str) -> Answer:
        """Compare two structures and, where one of them is no structure, the texts they were read from."""
        if isinstance(gold, Region) or isinstance(answer, Region):
            return self._regions(gold, answer)
        if isinstance(gold, Equation) or isinstance(answer, Equation):
            return self._equations(gold, answer, gold_text, answer_text)
        if isinstance(gold, Matrix) or isinstance(answer, Matrix):
            return self._matrices(gold, answer, gold_text, answer_text)
        if isinstance(gold, Items) or isinstance(answer, Items):
            return self._items(gold, answer)
        return self.values(gold.text, answer.text)

    def _regions(self, gold: Form, answer: Form) -> Answer:
        if isinstance(gold, Equation) or isinstance(answer, Equation):
            return self._say(False, "exact", "form: an equation and a region")
        g, a = as_region(gold), as_region(answer)
        if g is None or a is None:
            return self._whole(gold, answer)
        if g.name and a.name and g.name != a.name:
            return self._say(False, "exact", "another variable")
        if len(g.parts) != len(a.parts):
            return self._say(False, "exact", "form: another number of intervals")
        return self._matching(list(g.parts), list(a.parts), self._interval)

    def _interval(self, gold: Interval, answer: Interval) -> Answer:
        if (gold.low_closed, gold.high_closed) != (answer.low_closed, answer.high_closed):
            return self._say(False, "exact", "an end is open on one side and closed on the other")
        return self._all([partial(self.same, gold.low, answer.low), partial(self.same, gold.high, answer.high)])

    def _whole(self, gold: Form, answer: Form) -> Answer:
        """A region against something else: only a set built by symbolic means could match."""
        texts = [f.text for f in (gold, answer) if isinstance(f, Leaf)]
        if len(texts) != 1 or not special.set_like(texts[0]):
            return self._say(False, "exact", "form: a region and a value")
        region = next(f for f in (gold, answer) if isinstance(f, Region))
        spelled = special.spell_region(region)
        pair = (texts[0], spelled) if isinstance(gold, Leaf) else (spelled, texts[0])
        return self._symbolic(*pair)

    def _equations(self, gold: Form, answer: Form, gold_text: str, answer_text: str) -> Answer:
        if isinstance(gold, Equation) and isinstance(answer, Equation):
            if gold.name and (gold.name == answer.name or special.both_functions(gold.name, answer.name)):
                return self.same(gold.right, answer.right)
            if gold.name and answer.name and not (special.has_letters(gold.right) or special.has_letters(answer.right)):
                return self._say(False, "exact", "another variable")
            for text in (gold.left, gold.right, answer.left, answer.right):
                if refusal(text) or special.wordy(text):
                    return self._say(False, "text", "words")
            self.stage, self.reason = "symbolic", "equations"
            return self.symbolic.equations((gold.left, gold.right), (answer.left, answer.right))
        if isinstance(answer, Equation):
            return self.same(gold_text, answer.right)
        assert isinstance(gold, Equation)
        if not gold.name:
            return self._say(False, "exact", "form: the gold is an equation")
        return self.same(gold.right, answer_text)

    def _matrices(self, gold: Form, answer: Form, gold_text: str, answer_text: str) -> Answer:
        if isinstance(gold, Leaf) or isinstance(answer, Leaf):
            if r"\begin{" in gold_text and r"\begin{" in answer_text:
                return self._symbolic(gold_text, answer_text)
            return self._say(False, "exact", "form: a matrix and a value")
        g, a = self._rows(gold), self._rows(answer)
        if g is None or a is None or [len(r) for r in g] != [len(r) for r in a]:
            return self._say(False, "exact", "form: matrices of another shape")
        pairs = [(x, y) for gr, ar in zip(g, a, strict=True) for x, y in zip(gr, ar, strict=True)]
        return self._all([partial(self.same, x, y) for x, y in pairs])

    def _rows(self, form: Form) -> list[tuple[str, ...]] | None:
        """Rows of a matrix; a tuple counts as a column."""
        if isinstance(form, Matrix):
            rows = list(form.rows)
            return [(c,) for c in rows[0]] if len(rows) == 1 else rows
        if isinstance(form, Items) and form.kind in ("(", "["):
            return [(item,) for item in form.items]
        return None

    def _items(self, gold: Form, answer: Form) -> Answer:
        g, a = self._as_items(gold), self._as_items(answer)
        if len(g.items) > MAX_ITEMS or len(a.items) > MAX_ITEMS:
            return self._say(False, "guard", "long: too many items")
        if len(a.items) > 1 and len(g.items) == 1:
            return self._say(False, "exact", "hedged: several values for one")
        if len(g.items) != len(a.items):
            return self._say(False, "exact", "form: another number of values")
        kinds = {g.kind, a.kind}
        ordered = bool(kinds & {"(", "["}) or (self.policy.ordered_lists and kinds == {""})
        if ordered and "{" in kinds:
            if not self.policy.sets_match_tuples:
                return self._say(False, "exact", "form: a set and a tuple")
            ordered = False
        if kinds == {"(", "["}:
            return self._say(False, "exact", "form: other brackets")
        if ordered:
            pairs = list(zip(g.items, a.items, strict=True))
            return self._all([partial(self.same, x, y) for x, y in pairs])
        return self._matching(list(g.items), list(a.items), self.same)

    def _as_items(self, form: Form) -> Items:
        if isinstance(form, Items):
            return form
        assert isinstance(form, Leaf)  # forms() has dealt with every other kind
        return Items("", (form.text,))

    def values(self, gold: str, answer: str) -> Answer:
        """Compare two single values."""
        if canonical(gold) == canonical(answer):
            return self._say(True, "text", "same text")
        if special.is_empty_set(gold) or special.is_empty_set(answer):
            return self._say(special.is_empty_set(gold) == special.is_empty_set(answer), "text", "empty set")
        gold, answer = special.digits(gold, other=answer), special.digits(answer, other=gold)
        answer = special.same_integer_name(gold, answer)
        numeric = self._read(gold) is not None and not special.has_letters(gold)
        g, gold_unit = self.units.split(gold, loose=False)
        a, answer_unit = self.units.split(answer, loose=numeric)
        if special.wordy(g) or special.wordy(a):
            return self._say(special.same_words(gold, answer), "text", "words")
        if special.is_trigonometric(g) or special.is_trigonometric(a):
            g, a = (gold if special.is_trigonometric(g) else g), (answer if special.is_trigonometric(a) else a)
            gold_unit = answer_unit = NO_UNIT
        if self.policy.units != "ignore" and conflict(gold_unit, answer_unit):
            return self._say(False, "text", "units in conflict")
        if self.policy.units == "strict" and not gold_unit.empty and answer_unit.empty:
            return self._say(False, "text", "unit missing")
        if not self.policy.unreduced and special.reducible(a) and not special.reducible(g):
            return self._say(False, "text", "unreduced")
        scales = self._scales(gold_unit, answer_unit, special.in_radians(a) or special.in_radians(g))
        return self._any(partial(self._scaled, g, gs, a, scale) for gs, scale in scales)

    def _scales(self, gold: Unit, answer: Unit, radians: bool) -> list[tuple[Fraction | str, Fraction | str]]:
        """Pairs of factors under which the two numbers may agree."""
        one = Fraction(1)
        if gold.percent or answer.percent:
            if gold.percent and answer.percent:
                return [(one, one)]
            exact = (Fraction(1, 100), one) if gold.percent else (one, Fraction(1, 100))
            return [exact, (one, one)] if self.policy.percent else [exact]
        degree = (("degree", 1),)
        if radians and (gold.dimension == degree) != (answer.dimension == degree):
            turn = r"\frac{\pi}{180}"
            return [(turn, one)] if gold.dimension == degree else [(one, turn)]
        if gold.dimension and gold.dimension == answer.dimension and gold.factor != answer.factor:
            return [(gold.factor, answer.factor)]
        return [(one, one)]

    def _scaled(self, gold: str, gold_scale: Fraction | str, answer: str, answer_scale: Fraction | str) -> Answer:
        gold, answer = _times(gold, gold_scale), _times(answer, answer_scale)
        undecided = False
        for g in self._readings(gold):
            for a in self._readings(answer):
                if g is None or a is None:
                    undecided = True
                    continue
                try:
                    if self._equal(g, a):
                        return self._say(True, "exact", "equal")
                except Undecided:
                    undecided = True
        if not undecided:
            return self._say(False, "exact", "not equal")
        return self._symbolic(gold, answer)

    def _equal(self, gold: Value, answer: Value) -> bool:
        if self.policy.tolerance != "none":
            g, a = gold.fraction, answer.fraction
            if g is not None and a is not None:
                width = Fraction(self.policy.tolerance_value)
                return abs(g - a) <= (width * abs(g) if self.policy.tolerance == "rel" else width)
            if g is not None or a is not None:
                raise Undecided("a tolerance between a number and an expression")
        return gold.same(answer)

    def _read(self, text: str) -> Value | None:
        try:
            return read(text)
        except Undecided:
            return None

    def _readings(self, text: str) -> list[Value | None]:
        first = self._read(text)
        if first is None or not ambiguous(text):
            return [first]
        try:
            return [first, read(text, tight=True)]
        except Undecided:
            return [first]

    def _symbolic(self, gold: str, answer: str) -> Answer:
        refused = refusal(answer)
        if refused:
            return self._say(False, "guard", refused)
        refused = refusal(gold)
        if refused:
            return self._say(False, "guard", f"gold {refused}")
        self.stage, self.reason = "symbolic", "symbolic"
        return self.symbolic.values(gold, answer)

    def give_up(self) -> bool:
        """The verdict on a text that is nested too deeply to be read."""
        return self._say(False, "guard", "nested: too deep to read")

    def _say(self, value: bool, stage: str, reason: str) -> bool:
        self.stage, self.reason = stage, reason
        return value

    def _all(self, checks: list[Callable[[], Answer]]) -> Answer:
        """False as soon as one is; undecided if one is; else True."""
        undecided = False
        for check in checks:
            value = check()
            if value is False:
                return False
            undecided = undecided or value is None
        return None if undecided else True

    def _any(self, checks: Iterable[Callable[[], Answer]]) -> Answer:
        undecided = False
        for check in checks:
            value = check()
            if value:
                return True
            undecided = undecided or value is None
        return None if undecided else False

    def _matching(self, gold: list[object], answer: list[object], same: Callable[..., Answer]) -> Answer:
        """Pair every gold item with another answer item, in any order; equality is transitive, so greed suffices."""
        left = list(answer)
        undecided = False
        for item in gold:
            results = []
            for candidate in left:
                results.append(same(item, candidate))
                if results[-1]:
                    break
            if results[-1:] == [True]:
                left.pop(len(results) - 1)
            elif None in results:
                undecided = True
            else:
                return False
        return None if undecided else True


def _times(text: str, scale: Fraction | str) -> str:
    if scale == 1:
        return text
    factor = scale if isinstance(scale, str) else f"\\frac{{{scale.numerator}}}{{{scale.denominator}}}"
    return f"({text})\\cdot {factor}"

"""Find the final answer in a response: own code, linear time, no backtracking.

Order: what follows the last `</think>`; in it the last `<answer>…</answer>`, the last balanced `\\boxed{}` or
`\\fbox{}` (neighbouring boxes joined by "and", "or" or a comma are one list), the last `#### …`, "final answer is …",
"answer: …" / "answer is …", a response that is nothing but a value, and, if the policy allows it, the last number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coterie.rewards.answers.policy import Policy


@dataclass(frozen=True)
class Extraction:
    """An answer as the response states it.

    Attributes:
        text: the answer, or None.
        how: the rule that found it.
        reason: why there is none ("no answer", "unclosed think", "hedged", "empty").
        boxes: boxed answers in the searched text.
    """

    text: str | None
    how: str = ""
    reason: str = ""
    boxes: int = 0


_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BRACE_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
_UNBRACED = re.compile(r"[^\s${}\\,;]+|\\[a-zA-Z]+")
_JOINT = re.compile(r"[\s$\\()\[\]]*(?:,|;|and|or|\\text\{\s*(?:and|or)\s*\})[\s$\\()\[\]]*(?:and|or)?[\s$\\()\[\]]*")
_HASH_ANSWER = re.compile(r"[\s:*]*[-+−$€£¥\\({\[.]{0,4}\s*(?:\d|\\frac|\\sqrt|\\pi|\\text)")
_FINAL = re.compile(r"final\s+answer[*_\s]{0,4}(?:is\b|[:=])[*_\s:]*", re.IGNORECASE)
_PHRASE = re.compile(r"\banswer[*_\s]{0,4}(?:is\b|[:=])[*_\s:]*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\s(?:because|since|which|so|as)\s|[!?](?=\s|$)")
_MATH_SPAN = re.compile(r"\$\$([^$]*)\$\$|\$([^$\n]*)\$|\\\(([^\n]*?)\\\)|\\\[(.*?)\\\]", re.DOTALL)
_BARE = re.compile(r"[-+−$€£\\({\[.]{0,4}\s*\d[\d,.\s/%]*|\$[^$\n]+\$|\\[(\[][^\n]+\\[)\]]")
_NUMBER = re.compile(r"[-+]?[$€£]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)%?")
_MARKED = re.compile(r"\\boxed|\\fbox|<answer>|####|\banswer[*_\s]{0,4}(?:is\b|[:=])", re.IGNORECASE)


def has_marker(text: str) -> bool:
    """Whether the text marks an answer in one of the ways that `extract` knows."""
    return _MARKED.search(text) is not None


def extract(response: str, policy: Policy) -> Extraction:
    """The final answer of a response."""
    text = response
    closed = text.rfind("</think>")
    if closed >= 0:
        text = text[closed + len("</think>") :]
    elif "<think>" in text and policy.unclosed_think == "wrong":
        return Extraction(None, reason="unclosed think")
    text = _without_code(text[-policy.search_chars :])
    tagged = _answer_tag(text)
    if tagged is not None:
        inner = _marked(tagged, policy)
        if inner.reason:
            return inner
        return _finish(Extraction(tagged if inner.text is None else inner.text, "answer_tag", "", inner.boxes))
    found = _marked(text, policy)
    if found.text is None and not found.reason:
        found = _unmarked(text, policy)
    return _finish(found)


def _finish(found: Extraction) -> Extraction:
    if found.text is None:
        return found if found.reason else Extraction(None, reason="no answer", boxes=found.boxes)
    text = found.text.strip()
    if not text:
        return Extraction(None, found.how, "empty", found.boxes)
    return Extraction(text, found.how, "", found.boxes)


def _without_code(text: str) -> str:
    """The text outside of fenced code blocks; an unclosed fence runs to the end."""
    return text if "```" not in text else "\n".join(text.split("```")[::2])


def _answer_tag(text: str) -> str | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else text.rfind("<answer>")
    if start < 0:
        return None
    start += len("<answer>")
    return text[start : end if end >= 0 else len(text)]


def _marked(text: str, policy: Policy) -> Extraction:
    boxed = _boxed(text, policy)
    if boxed.text is not None or boxed.reason:
        return boxed
    hashed = _hashed(text)
    if hashed is not None:
        return Extraction(hashed, "hash", boxes=boxed.boxes)
    for pattern in (_FINAL, _PHRASE):
        phrase = _phrase(text, pattern)
        if phrase is not None:
            return Extraction(phrase, "phrase", boxes=boxed.boxes)
    return Extraction(None, boxes=boxed.boxes)


def _boxed(text: str, policy: Policy) -> Extraction:
    spans = box_spans(text)
    if not spans:
        return Extraction(None)
    if len({"".join(text[start : min(end, start + 200)].split()) for _, start, end, _ in spans}) > policy.max_boxes:
        return Extraction(None, "boxed", "hedged", len(spans))
    joined = [text[spans[-1][1] : spans[-1][2]]]
    for earlier, later in zip(reversed(spans[:-1]), reversed(spans[1:]), strict=True):
        between = text[earlier[3] : later[0]]
        if later[0] < earlier[3] or len(between) > 40 or not _JOINT.fullmatch(between):
            break
        joined.append(text[earlier[1] : earlier[2]])
    return Extraction(", ".join(reversed(joined)), "boxed", "", len(spans))


def box_spans(text: str) -> list[tuple[int, int, int, int]]:
    """Closed boxes in order: (start of the command, start and end of the content, end of the box). One pass."""
    openings: dict[int, int] = {}
    spans = []
    for match in _BOX.finditer(text):
        if text[match.end() : match.end() + 1] == "{":
            openings[match.end()] = match.start()
        else:
            word = _UNBRACED.match(text, match.end())
            if word:
                spans.append((match.start(), word.start(), word.end(), word.end()))
    stack: list[int] = []
    for token in _BRACE_TOKEN.finditer(text) if openings else ():
        if token.group() == "{":
            stack.append(token.start())
        elif token.group() == "}" and stack:
            opened = stack.pop()
            if opened in openings:
                spans.append((openings[opened], opened + 1, token.start(), token.end()))
    return sorted(spans)


def _hashed(text: str) -> str | None:
    """The rest of the last line marked by `####` that starts like a value (or is at most two words)."""
    end = len(text)
    while True:
        at = text.rfind("####", 0, end)
        if at < 0:
            return None
        line = text[at + 4 : end].split("\n", 1)[0].strip().strip("*").strip()
        if line and not line.startswith("#") and (_HASH_ANSWER.match(line[:80]) or len(line.split()) <= 2):
            return line
        end = at


def _phrase(text: str, pattern: re.Pattern[str]) -> str | None:
    found = list(pattern.finditer(text))
    if not found:
        return None
    last = found[-1]
    rest = text[last.end() :].lstrip()
    rest = rest.split("\n\n", 1)[0] if rest.startswith(("$$", "\\[")) else rest.split("\n", 1)[0]
    if rest.startswith(("$", "\\(", "\\[")):
        return _leading_math(rest)
    end = _SENTENCE_END.search(rest)
    return (rest[: end.start()] if end else rest).rstrip(", ").strip("*_ ")


def _leading_math(text: str) -> str:
    """The mathematics a line starts with; several spans joined by commas, "and" or "or" are one list."""
    parts, at = [], 0
    while True:
        span = _MATH_SPAN.match(text, at)
        if not span:
            break
        parts.append(next(g for g in span.groups() if g is not None))
        at = span.end()
        joint = _JOINT.match(text, at)
        following = joint.group().rstrip("$\\([") if joint else ""
        if not following.strip():
            break
        at += len(following)
    if not parts:
        end = _SENTENCE_END.search(text)
        return text[: end.start()] if end else text
    unit = re.match(r"[ ~]*(?:%|\\%|[A-Za-z°]+)(?=[\s.,;!?]|$)", text[at:]) if len(parts) == 1 else None
    if unit and unit.group().strip() not in ("and", "or", "is", "because", "since", "which", "so", "as", "for", "if"):
        return f"{parts[0]}\\text{{{unit.group()}}}" if "%" not in unit.group() else f"{parts[0]}\\%"
    return ", ".join(parts)


def _unmarked(text: str, policy: Policy) -> Extraction:
    stripped = text.strip().rstrip(".")
    if len(stripped) <= 200 and _BARE.fullmatch(stripped):
        return Extraction(stripped, "bare")
    if policy.last_number:
        numbers = _NUMBER.findall(text)
        if numbers:
            return Extraction(numbers[-1], "last_number")
    return Extraction(None)

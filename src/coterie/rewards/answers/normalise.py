"""Spelling: bring an answer's LaTeX and Unicode to one form that the other parts read. Linear time on capped text.

What is left after `clean`: ASCII; `\\frac{a}{b}`, `\\sqrt{a}`, `\\le \\ge \\ne \\infty \\emptyset \\cup \\in \\pm`; `%`
and `\\text{…}` for words; no `$`, `\\left`, `\\right`, `\\,`; digit groups joined where that is certain (`12\\,345`,
`12{,}345`, `12 345`) while a plain `1,000` keeps its comma, which may also separate a list.
"""

from __future__ import annotations

import re
import unicodedata

_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "0123456789+-ni")
_SUB = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUPER_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ]+")
_SUB_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR = {
        "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5),
        "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8),
}  # fmt: skip
_VULGAR_RUN = re.compile("[" + "".join(_VULGAR) + "]")
_SIGNS = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "⁄": "/", "∕": "/", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ",
    "≈": r"\approx ", "∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ", "∛": r"\sqrt[3] ", "°": r"^\circ ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "±": r"\pm ", "∓": r"\mp ",
    "ℝ": r"\mathbb{R} ", "ℤ": r"\mathbb{Z} ", "ℕ": r"\mathbb{N} ", "ℚ": r"\mathbb{Q} ", "¬": r"\neg ",
    "∖": r"\setminus ", "′": "'", "″": "''", "“": '"', "”": '"', "‘": "'", "’": "'", "…": r"\ldots ", "∶": ":",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "θ": r"\theta ", "λ": r"\lambda ",
    "μ": r"\mu ", "σ": r"\sigma ", "φ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "ε": r"\varepsilon ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "∣": "|", "∧": r"\land ", "∨": r"\lor ",
}  # fmt: skip
_TRANSLATE = str.maketrans({ord(k): v for k, v in _SIGNS.items()})
_BRACE_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_INVISIBLE = re.compile("[\u200b-\u200f\u2060-\u2064\ufeff\u00ad]")

_RENAMED = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge",
    "neq": "ne", "lt": "<", "gt": ">", "varnothing": "emptyset", "infin": "infty", "wedge": "land", "vee": "lor",
    "degree": "circ", "R": "mathbb{R}", "Z": "mathbb{Z}", "N": "mathbb{N}", "Q": "mathbb{Q}", "lbrace": "{",
    "rbrace": "}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "simeq": "approx",
    "dbinom": "binom", "lg": "log_{10}",
    "tbinom": "binom", "lnot": "neg", "colon": ":", "vert": "|", "lvert": "|", "rvert": "|", "mid": "|",
    "dots": "ldots", "cdots": "ldots", "setminus": "setminus", "backslash": "setminus", "isin": "in", "ast": "*",
    "lbrac": "{",
}  # fmt: skip
_DROPPED = frozenset((
    "therefore", "because",
    "boxed", "fbox", "left", "right", "middle", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl",
    "biggr",
    "Biggl", "Biggr", "displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "mathstrut", "strut",
    "phantom", "rm", "bf", "it", "bm", "boldsymbol", "nonumber", "notag", "hfill",
))  # fmt: skip
_SPACES = frozenset((
    "quad", "qquad", "enspace", "thinspace", "medspace", "thickspace", "negthinspace",
))  # fmt: skip
_WORDS = frozenset((
    "text", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "mbox", "hbox", "mathrm", "mathbf",
    "mathsf", "mathit",
))  # fmt: skip
_COMMAND = re.compile(r"\\([a-zA-Z]+)[ \t]*|\\([,;:! ])|\\\$|\\%|~|\\\\")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z(){}\[\]%$,])")
_WORD_GROUP = re.compile(
    r"\\(text|textbf|textit|textrm|textsf|texttt|textnormal|mbox|hbox|mathrm|mathbf|mathsf|mathit)\{"
)
_HSPACE = re.compile(r"\\(?:hspace|vspace|hskip|mspace)\*?\{[^{}]*\}")
_OPERATOR = re.compile(r"\\operatorname\*?\{([a-zA-Z]+)\}")

_THIN = r"(?:\{,\}|,?\\[!,;: ]|,?\\!|~| )"
_GROUPED = re.compile(rf"(?<![\d.,])(\d{{1,3}})((?:{_THIN}\d{{3}})+)(?!\d)(?!{_THIN}\d)(?!\s*/)(?!\s+\\frac)")
_THIN_ONE = re.compile(_THIN)
_FRACTION_GROUPED = re.compile(rf"(?<=\.)\d{{3}}(?:{_THIN}\d{{3}})*{_THIN}\d{{1,3}}(?!\d)")
_DECIMAL_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
_SHORT_FRAC = re.compile(r"\\frac *(?:\{([^{}]*)\}|([0-9a-zA-Z])) *(?:\{([^{}]*)\}|([0-9a-zA-Z]))")
_SHORT_SQRT = re.compile(r"\\sqrt *(\[[^\[\]]*\])? *([0-9]+|[a-zA-Z])")
_CARET_DIGITS = re.compile(r"\^ *(-?\d+)(?![\d.])")
_CARET_PAREN = re.compile(r"\^ *\(([^()]*)\)")
_PLAIN_NAME = re.compile(
    r"(?<![\\a-zA-Z{])(sqrt|arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|infinity|theta|alpha|"
    r"beta|lambda)(?![a-zA-Z])"
)
_TIMES_TEN = re.compile(r"(?<=\d) ?[xX] ?(?=10 ?\^)")
_UPRIGHT = re.compile(r"\\(?:mathrm|mathit|mathbf|text|textbf) ?\{ ?([ied]|\\pi|[-+]?[\d.,/]+) ?\}")
_ABOUT = re.compile(r"^(?:\\text\{)? ?(?:about|approximately|exactly|roughly|around|approx\.) ?\}? ", re.IGNORECASE)
_INFINITY = re.compile(r"\\text\{ ?infinity ?\}")
_INFIX = re.compile(r"\{([^{}]*)\\(over|choose)(?![a-zA-Z]) ?([^{}]*)\}")
_LOG_E = re.compile(r"\\log ?_ ?(?:e|\{ ?e ?\}) ?")
_CONSTANT = re.compile(r"([+-]) ?[cCK]$")
_REMARK = re.compile(r"(?<=[\d}%]) ?(?:\\text\{)? ?\(([a-zA-Z][a-zA-Z ]{2,40})\) ?\}?$")
_SPACE_RUN = re.compile(r"[ \t\n\r]+")
_TIGHT = re.compile(r"(?<![0-9A-Za-z])[ ]|[ ](?![0-9A-Za-z])|(?<=[0-9])[ ](?=[A-Za-z])|(?<=[A-Za-z])[ ](?=[0-9])")
_ONE_IN_BRACES = re.compile(r"([_^])\{([0-9A-Za-z])\}")


def clean(text: str) -> str:
    """One spelling for one meaning, as far as that needs no reading of the mathematics."""
    text = _unicode(_CONTROL.sub(" ", text))
    if "matrix" not in text and "array" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _strip_dollars(_plain(text))
    text = _GROUPED.sub(lambda m: m.group(1) + _THIN_ONE.sub("", m.group(2)), text)
    text = _FRACTION_GROUPED.sub(lambda m: _THIN_ONE.sub("", m.group()), text)
    text = _DECIMAL_COMMA.sub(".", text)
    text = _HSPACE.sub(" ", text)
    text = _UPRIGHT.sub(r"\1 ", text)
    text = _OPERATOR.sub(r"\\\1 ", text)
    text = _PLAIN_NAME.sub(lambda m: "\\infty " if m.group(1) == "infinity" else f"\\{m.group(1)} ", text)
    text = _TIMES_TEN.sub(r"\\times ", text)
    text = _INFIX.sub(lambda m: f"\\{'frac' if m[2] == 'over' else 'binom'}{{{m[1]}}}{{{m[3]}}}", text)
    text = _LOG_E.sub(r"\\ln ", text)
    text = _COMMAND.sub(_command, text)
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\ne ").replace("**", "^")
    text = text.replace(r"^{\circ}", r"^\circ ").replace(r"^ \circ", r"^\circ ")
    text = _CARET_PAREN.sub(r"^{\1}", text)
    text = _CARET_DIGITS.sub(r"^{\1}", text)
    text = _SHORT_SQRT.sub(lambda m: f"\\sqrt{m.group(1) or ''}{{{m.group(2)}}}", text)
    text = _SHORT_FRAC.sub(_frac, text)
    text = _INFINITY.sub(r"\\infty", _ABOUT.sub("", _trim(_SPACE_RUN.sub(" ", text))))
    text = _REMARK.sub(r"\\text{ \1}", text)
    return _CONSTANT.sub(r"\1C", text)


def canonical(cleaned: str) -> str:
    """A key for equality of spelling: no blanks but those that separate digits or letters, no idle braces."""
    return _ONE_IN_BRACES.sub(r"\1\2", _TIGHT.sub("", cleaned))


def unwrap_text(cleaned: str) -> str:
    """`\\text{word}` and its kin as plain words."""
    if "\\" not in cleaned:
        return cleaned.strip()
    pairs = brace_pairs(cleaned)
    out, at = [], 0
    for match in _WORD_GROUP.finditer(cleaned):
        end = pairs.get(match.end() - 1)
        if match.start() < at or end is None:
            continue
        out += [cleaned[at : match.start()], " ", cleaned[match.end() : end], " "]
        at = end + 1
    out.append(cleaned[at:])
    return _SPACE_RUN.sub(" ", "".join(out)).strip()


def brace_pairs(text: str) -> dict[int, int]:
    """Position of the closing brace for that of each opening one; escaped braces are no braces. One pass."""
    pairs: dict[int, int] = {}
    stack: list[int] = []
    for token in _BRACE_TOKEN.finditer(text):
        if token.group() == "{":
            stack.append(token.start())
        elif token.group() == "}" and stack:
            pairs[stack.pop()] = token.start()
    return pairs


def enclosed(text: str) -> bool:
    """Whether one pair of braces stands around everything."""
    return text.startswith("{") and text.endswith("}") and brace_pairs(text).get(0) == len(text) - 1


def _unicode(text: str) -> str:
    if text.isascii():
        return text
    text = _INVISIBLE.sub("", text)
    text = _SUPER_RUN.sub(lambda m: "^{" + m.group().translate(_SUPER) + "}", text)
    text = _SUB_RUN.sub(lambda m: "_{" + m.group().translate(_SUB) + "}", text)
    text = _VULGAR_RUN.sub(lambda m: "\\frac{{{}}}{{{}}}".format(*_VULGAR[m.group()]), text)
    text = text.translate(_TRANSLATE)
    return unicodedata.normalize("NFKC", text).translate(_TRANSLATE)


def _strip_dollars(text: str) -> str:
    """Without mathematics delimiters; an odd `$` before a number is money and becomes `\\$`."""
    text = (
        text.replace("\\(", " ").replace("\\)", " ").replace("\\[", " ").replace("\\]", " ") if "\\" in text else text
    )
    plain = text.replace("\\$", "\0")
    count = plain.count("$")
    if count % 2 and count != plain.count("$$") * 2:
        at = plain.rfind("$") if count > 1 else plain.find("$")
        money = re.match(r"\$\s*[\d.]", plain[at:])
        plain = plain[:at] + ("\0" if money else " ") + plain[at + 1 :]
    return plain.replace("$", " ").replace("\0", "\\$")


def _command(match: re.Match[str]) -> str:
    name, space = match.group(1), match.group(2)
    if name is None:
        if space is not None:
            return "" if space == "!" else " "
        return {"\\%": "%", "~": " "}.get(match.group(), match.group())
    if name in _DROPPED:
        return ""
    if name in _SPACES:
        return " "
    name = _RENAMED.get(name, name)
    if name in _WORDS:
        return "\\" + name
    if name in ("{", "}"):
        return "\\" + name
    if name in ("<", ">", ":", "|", "[", "]", "(", ")", "*"):
        return name
    following = match.string[match.end() : match.end() + 1]
    return f"\\{name} " if following.isalnum() else f"\\{name}"


def _frac(match: re.Match[str]) -> str:
    top = match.group(1) if match.group(1) is not None else match.group(2)
    bottom = match.group(3) if match.group(3) is not None else match.group(4)
    return f"\\frac{{{top}}}{{{bottom}}}"


def _plain(text: str) -> str:
    """Without Markdown emphasis and quotes around everything."""
    text = text.strip().strip("`").strip()
    for mark in ("**", "__", '"'):
        if text.startswith(mark) and text.rstrip(".").endswith(mark) and len(text) > 2 * len(mark):
            text = text.rstrip(".")[len(mark) : -len(mark)].strip()
    return text


def _inside(text: str) -> str:
    """Without the braces around everything, however many there are."""
    pairs, depth = brace_pairs(text), 0
    while pairs.get(depth) == len(text) - 1 - depth:
        depth += 1
    return text[depth : len(text) - depth]


def _trim(text: str) -> str:
    """Without leading "=" or "≈", final punctuation, and braces around everything."""
    text = text.strip()
    while text.endswith((".", ",", ";", ":")) and not text.endswith(("..", "\\,", "\\;", "\\:")):
        text = text[:-1].rstrip()
    while text.startswith(("=", "\\approx", ":")):
        text = text[7 if text.startswith("\\approx") else 1 :].lstrip()
    if enclosed(text):
        text = _inside(text).strip()
    return text

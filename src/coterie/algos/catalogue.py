"""The list of algorithms, read from the classes: `coterie algo list`, `coterie algo show`, docs/algorithms.md.

An entry's text is its class docstring, in the sections Equation (or Rule), Paper, Differences, Degenerate cases and
Attributes; fields, defaults and conventions are read from the class. Nothing is written down twice.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.algos import aggregate, corrections, kl
from coterie.algos.names import HOME
from coterie.errors import ConfigError

SECTIONS = ("Equation", "Rule", "Paper", "Differences", "Degenerate cases", "Attributes", "Raises")
UNSLOTTED = "without a slot"


@dataclass(frozen=True)
class Field:
    """A hyper-parameter.

    Attributes:
        name: its key.
        default: its default, as written in Python.
        doc: what it does.
        inherited: whether the class takes it over from a base unchanged.
    """

    name: str
    default: str
    doc: str
    inherited: bool


@dataclass(frozen=True)
class Entry:
    """One algorithm.

    Attributes:
        slot: key of the configuration that takes it.
        name: its choice there.
        target: the class.
        summary: first sentence of its docstring.
        sections: text by section name.
        fields: hyper-parameters, its own first.
        conventions: field overrides by framework.
        paper: arXiv number and place, or another source; empty for none.
    """

    slot: str
    name: str
    target: type
    summary: str
    sections: Mapping[str, str]
    fields: tuple[Field, ...]
    conventions: Mapping[str, Mapping[str, Any]]
    paper: str


def entries() -> list[Entry]:
    """Every algorithm of `coterie.algos` that a slot offers, and the public classes that none does."""
    found = [entry_of(slot, name, target) for slot, name, target in _slotted()]
    offered = {e.target for e in found}
    rest = {name: getattr(importlib.import_module(f"coterie.algos.{HOME[name]}"), name) for name in sorted(HOME)}
    for name, target in rest.items():
        if _is_algorithm(target) and target not in offered:
            found.append(entry_of(UNSLOTTED, _snake(name), target))
    return found


def entry_of(slot: str, name: str, target: type) -> Entry:
    """The entry of a class."""
    summary, sections = parse_docstring(inspect.getdoc(target) or "")
    return Entry(
        slot=slot,
        name=name,
        target=target,
        summary=summary,
        sections=sections,
        fields=_fields(target),
        conventions=getattr(target, "conventions", {}),
        paper=getattr(target, "paper", ""),
    )


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """`(summary, sections)`: the first paragraph on one line, and the text under each section label."""
    head, _, body = text.partition("\n\n")
    label = re.compile(rf"^({'|'.join(SECTIONS)}):[ \t]*", re.MULTILINE)
    found = list(label.finditer(body))
    ends = [*(m.start() for m in found[1:]), len(body)][: len(found)]
    sections = {m[1]: _dedent(body[m.end() : end]) for m, end in zip(found, ends, strict=True)}
    return " ".join(head.split()), sections


def attribute_docs(text: str) -> dict[str, str]:
    """Field name to description, from the text of an Attributes section."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in textwrap.dedent(text).splitlines():
        started = re.match(r"^(\w+(?:, \w+)*): (.*)$", line)
        if started:
            names = started[1].split(", ")
            found |= {name: [started[2]] for name in names}
        elif names and line.strip():
            for name in names:
                found[name].append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}


def listing() -> str:
    """What `coterie algo list` prints: one line an algorithm, by slot."""
    lines: list[str] = []
    for slot, members in _by_slot(entries()).items():
        lines.append(slot)
        width = max(len(e.name) for e in members)
        lines += [f"  {e.name:<{width}}  {e.summary}" for e in members]
    return "\n".join(lines) + "\n"


def show(name: str) -> str:
    """What `coterie algo show NAME` prints; NAME is a choice, `slot/choice` or a class name.

    Raises:
        ConfigError: for an unknown name, with the nearest ones.
    """
    known = entries()
    wanted = name.partition("@")[0].lower()
    chosen = [e for e in known if wanted in (e.name.lower(), f"{e.slot}/{e.name}".lower(), e.target.__name__.lower())]
    if not chosen:
        names = sorted({e.name for e in known} | {f"{e.slot}/{e.name}" for e in known})
        near = difflib.get_close_matches(wanted, names, 3, 0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "coterie algo list shows all"
        raise ConfigError(f"{name}: no such algorithm; {hint}")
    return "\n\n".join(_plain(e) for e in chosen) + "\n"


def markdown() -> str:
    """The whole of docs/algorithms.md."""
    lines = [
        "# Algorithms",
        "",
        "Generated from the code (`python -m coterie.docs`); edit the docstrings instead. A choice goes into its slot",
        "(`loss=gspo`), a field below it (`loss.clip_high=0.28`), a convention behind it (`advantage=grpo@trl`).",
        "`sg(x)` is x without gradient, rho = exp(logprob - old_logprob), A the advantage, g the group of one prompt.",
    ]
    for slot, members in _by_slot(entries()).items():
        lines += ["", f"## {slot}", ""]
        lines += [f"* [{e.name}](#{_anchor(e)}): {e.summary}" for e in members]
        shared = _shared(members)
        for e in members:
            lines += ["", *_markdown_entry(e, shared)]
        if shared:
            lines += ["", f"### Fields that these share ({slot})", "", *_field_table(shared)]
    lines += ["", *_shared_formulas()]
    return "\n".join(lines) + "\n"


def _slotted() -> Iterator[tuple[str, str, type]]:
    """`(slot, choice, class)` for every choice that lives in `coterie.algos`."""
    table = importlib.import_module("coterie.config.slots")
    seen = set()
    for value in vars(table).values():
        slots = value.values() if isinstance(value, Mapping) else [value]
        for slot in slots:
            if not isinstance(slot, table.Slot):
                continue
            for name, place in slot.choices.items():
                module, _, attribute = place.partition(":")
                if module.startswith("coterie.algos.") and (slot.name, name) not in seen:
                    seen.add((slot.name, name))
                    yield slot.name, name, getattr(importlib.import_module(module), attribute)


def _is_algorithm(target: Any) -> bool:
    """A dataclass that names its source: not a base class, not a value type."""
    return inspect.isclass(target) and dataclasses.is_dataclass(target) and bool(vars(target).get("paper"))


def _fields(target: type) -> tuple[Field, ...]:
    if not dataclasses.is_dataclass(target):
        return ()
    docs: dict[str, str] = {}
    for base in reversed(target.__mro__):
        docs |= attribute_docs(parse_docstring(inspect.cleandoc(base.__doc__ or ""))[1].get("Attributes", ""))
    own = vars(target).get("__annotations__", {})
    found = [
        Field(f.name, _default(f), docs.get(f.name, ""), f.name not in own)
        for f in dataclasses.fields(target)
        if f.init
    ]
    return tuple(sorted(found, key=lambda f: f.inherited))


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "required"


def _shared(members: list[Entry]) -> list[Field]:
    """Inherited fields that several entries of a slot have with the same default."""
    counts: dict[Field, int] = {}
    for entry in members:
        for f in entry.fields:
            if f.inherited:
                counts[f] = counts.get(f, 0) + 1
    return [f for f, count in counts.items() if count > 1]


def _plain(e: Entry) -> str:
    lines = [f"{e.slot}={e.name}  ({e.target.__module__}:{e.target.__name__})", "", *textwrap.wrap(e.summary, 100)]
    for title in SECTIONS:
        if title in e.sections and title not in ("Attributes", "Raises"):
            lines += ["", f"{title}:", *_wrapped(e.sections[title])]
    if e.fields:
        lines += ["", "Fields:"]
        for f in e.fields:
            text = textwrap.fill(f.doc, 100, initial_indent="      ", subsequent_indent="      ")
            lines += [f"  {f.name} = {f.default}", text]
    if e.conventions:
        lines += ["", "Conventions:"]
        lines += [f"  {e.name}@{name}: {_overrides(values)}" for name, values in e.conventions.items()]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    """Prose wrapped at 100 columns, indented lines as they are."""
    lines: list[str] = []
    prose: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip() and not line.startswith("    "):
            prose.append(line)
            continue
        lines += textwrap.wrap(" ".join(prose), 100, initial_indent="  ", subsequent_indent="  ")
        prose = []
        if line.strip():
            lines.append("  " + line[4:])
        elif lines and lines[-1]:
            lines.append("")
    return lines[:-1] if lines and not lines[-1] else lines


def _markdown_entry(e: Entry, shared: list[Field]) -> list[str]:
    lines = [f"### {_heading(e)}", "", f"{e.summary} `{e.target.__module__}:{e.target.__name__}`", ""]
    for title in SECTIONS:
        if title in e.sections and title not in ("Attributes", "Raises"):
            lines += [*_markdown_section(title, _link(e.sections[title])), ""]
    own = [f for f in e.fields if f not in shared]
    if own:
        lines += [*_field_table(own), ""]
    if e.conventions:
        lines += ["Conventions:", ""]
        lines += [f"* `{e.name}@{name}`: {_overrides(values, '`')}" for name, values in e.conventions.items()]
        lines.append("")
    return lines[:-1]


def _shared_formulas() -> list[str]:
    """Denominators, KL estimators and sampler corrections, which every policy loss takes as fields."""
    parts = {
        "Denominators (`loss.aggregate`)": aggregate.weights_of.__doc__,
        "KL to the reference (`loss.kl`)": kl.__doc__,
        "Sampler-mismatch weights (`loss.correction`)": corrections.correction_rule.__doc__,
        "Rejections (`loss.rejection`)": corrections.rejection_rule.__doc__,
    }
    lines = ["## What every policy loss has"]
    for title, doc in parts.items():
        lines += ["", f"### {title}", "", *_fenced(_link(inspect.cleandoc(doc or "")))]
    return lines


def _markdown_section(title: str, text: str) -> list[str]:
    if "\n    " not in f"\n{text}":
        return [f"**{title}:** {text}"]
    return [f"**{title}:**", "", *_fenced(text)]


def _fenced(text: str) -> list[str]:
    """Indented blocks become code, the rest stays prose."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        code = all(line.startswith("    ") for line in block.splitlines())
        body = [line[4:] for line in block.splitlines()] if code else block.splitlines()
        lines += ["```text", *body, "```", ""] if code else [*body, ""]
    return lines[:-1]


def _field_table(fields: list[Field]) -> list[str]:
    lines = ["| field | default | meaning |", "|---|---|---|"]
    return lines + [f"| `{f.name}` | `{f.default}` | {f.doc.replace('|', chr(92) + '|')} |" for f in fields]


def _overrides(values: Mapping[str, Any], quote: str = "") -> str:
    if not values:
        return "as the defaults"
    return ", ".join(f"{quote}{key}={value!r}{quote}" for key, value in values.items())


def _by_slot(found: list[Entry]) -> dict[str, list[Entry]]:
    out: dict[str, list[Entry]] = {}
    for e in found:
        out.setdefault(e.slot, []).append(e)
    return out


def _link(text: str) -> str:
    return re.sub(r"arXiv[ :](\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def _heading(e: Entry) -> str:
    return f"{e.name} ({e.slot})"


def _anchor(e: Entry) -> str:
    """As GitHub makes it of the heading."""
    return re.sub(r"[^\w\- ]", "", _heading(e).lower()).replace(" ", "-")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-zA-Z])(?=[A-Z][a-z])", "_", name).lower()


def _dedent(text: str) -> str:
    """First line as it is, the others without their common indentation where that was the section's own."""
    first, newline, rest = text.partition("\n")
    if not first.strip():
        lines = rest.rstrip().splitlines()
        while lines and not lines[0].strip():
            lines.pop(0)
        return "\n".join(lines)
    return (first + newline + rest).rstrip()

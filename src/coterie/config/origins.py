"""Who set a key: the layers of a composition, replayed for their keys alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.default_element import ResultDefault

from coterie.config.overrides import Request
from coterie.config.pieces import NONE, find_piece
from coterie.config.primary import Primary
from coterie.config.source import CONF, EXPERIMENT, read_yaml

DEFAULT = "default"
COMMAND_LINE = "command line: "


@dataclass
class Origins:
    """What is known about each key.

    Attributes:
        of: leaf key, or slot, to who set it; absent keys have their default.
        meant_for: key below a slot that a file set, to the choice in force in that file.
        is_record: whether everything comes from the record of a run, which was checked when it was written.
    """

    of: dict[str, str] = field(default_factory=dict)
    meant_for: dict[str, str] = field(default_factory=dict)
    is_record: bool = False

    def __getitem__(self, key: str) -> str:
        return self.of.get(key, DEFAULT)

    def from_command_line(self, key: str) -> bool:
        """Whether the person typed it just now."""
        return self[key].startswith(COMMAND_LINE)

    def note(self, key: str) -> str:
        """` (set by …)` for an error message; nothing when the person typed it just now."""
        origin = self[key]
        return "" if origin == DEFAULT or self.from_command_line(key) else f" (set by {origin})"


def trace(layers: Sequence[ResultDefault], requests: Sequence[Request], primary: Primary) -> Origins:
    """Replay the layers of Hydra's defaults list in the order in which they were merged, then the command line."""
    origins = Origins()
    chosen: dict[str, str] = {}
    for layer in layers:
        group, _, name = str(layer.config_path).partition("/")
        if group in primary.slots and name and "@" in name:
            piece = find_piece(primary.slots[group], name)
            prefix = f"{group}.{piece.name}" if primary.slots[group].many else group
            origins.of |= {f"{prefix}.{key}": f"convention {name}" for key in piece.preset}
        elif (group == EXPERIMENT and name) or (not name and group != "hydra"):
            _trace_file(origins, primary, chosen, group, name)
    for request in requests:
        label = f"{COMMAND_LINE}{request.text}"
        for key, _ in [(request.key, None)] if request.chooses else flatten({request.key: request.value}):
            origins.of[key] = label
            origins.meant_for.pop(key, None)
    return origins


def flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings with dotted keys; an empty mapping is a leaf."""
    for key, value in node.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{dotted}.")
        else:
            yield dotted, value


def _trace_file(origins: Origins, primary: Primary, chosen: dict[str, str], group: str, name: str) -> None:
    """Note the keys and choices of one primary file (`name` empty) or preset."""
    if not name:
        label, file = f"conf/{group}.yaml", CONF / f"{group}.yaml"
    else:
        label = f"experiment {name}"
        file = Path(name) if name.endswith((".yaml", ".yml")) else CONF / EXPERIMENT / f"{name}.yaml"
    content = read_yaml(file)
    for item in content.pop("defaults"):
        for key, choice in item.items() if isinstance(item, Mapping) else ():
            slot = key.removeprefix("override").strip().lstrip("/")
            if slot in primary.slots:
                chosen[slot] = str(choice)
                origins.of[slot] = label
    content.pop("hydra", None)
    for key, _ in flatten(content):
        origins.of[key] = label
        slot = key.partition(".")[0]
        if slot in primary.slots and not primary.slots[slot].many:
            origins.meant_for[key] = chosen.get(slot, NONE)

"""Where Hydra finds what is not a YAML file: the schema of a verb, the defaults of a slot's choice, presets by path.

Hydra can't merge into frozen classes, so a choice is given to it as an open node made from the fields of the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from coterie.config.pieces import CHOICE, NONE, absolute_choice, find_piece
from coterie.config.primary import PRIMARIES, Verb
from coterie.config.slots import SLOTS, Slot
from coterie.config.typed import plain
from coterie.errors import ConfigError

CONF = Path(__file__).resolve().parent.parent / "conf"
"""Folder of coterie's own YAML files."""

SCHEMA, EXPERIMENT = "schema", "experiment"


class PieceSource(ConfigSource):
    """`coterie://`: groups `schema`, one for every slot, and `experiment` for files outside the package."""

    @staticmethod
    def scheme() -> str:
        return "coterie"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in (SCHEMA, EXPERIMENT) or config_path in SLOTS

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.partition("/")
        return self.is_group(group) and bool(name) and (group != EXPERIMENT or name.endswith((".yaml", ".yml")))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return sorted(SLOTS[config_path].choices) if config_path in SLOTS else []

    def load_config(self, config_path: str) -> ConfigResult:
        group, _, name = config_path.partition("/")
        package = None
        if group == EXPERIMENT:
            config = OmegaConf.create(read_yaml(Path(name)))
            package = "_global_"
        elif group == SCHEMA:
            config = OmegaConf.create(schema_node(_verb(name)))
            package = "_global_"
        else:
            node = slot_node(SLOTS[group], name)
            if SLOTS[group].many:
                package = f"{group}.{find_piece(SLOTS[group], name).name}"
            config = OmegaConf.create(node)
        return ConfigResult(self.provider, self.full_path(), config, {"package": package})


def schema_node(verb: Verb) -> dict[str, Any]:
    """Every section and scalar of a verb with its default, as plain values."""
    primary = PRIMARIES[verb]
    node: dict[str, Any] = {name: plain(default) for name, (_, default) in primary.scalars.items()}
    node |= {name: plain(cls()) for name, cls in primary.sections.items()}
    return node | {name: {} for name, slot in primary.slots.items() if slot.many}


def slot_node(slot: Slot, choice: str) -> dict[str, Any]:
    """The defaults of a choice, as plain values."""
    return {CHOICE: NONE} if choice == NONE and slot.optional else find_piece(slot, choice).node()


def read_yaml(path: Path) -> dict[str, Any]:
    """A preset file; paths of pieces in its defaults list are taken from its own folder where they exist there.

    Raises:
        ConfigError: for a missing file, broken YAML (with the line) or another form than keys and values.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file (current folder: {Path.cwd()})")
    try:
        loaded = OmegaConf.load(path)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{path}{line} is not valid YAML: {problem}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path}: a preset holds keys and values")
    content: dict[str, Any] = OmegaConf.to_container(loaded, resolve=False)  # type: ignore[assignment]
    defaults = content.get("defaults") or []
    if not isinstance(defaults, list) or not all(isinstance(item, str | Mapping) for item in defaults):
        raise ConfigError(f"{path}: defaults is a list, with entries like `- override /advantage: dr_grpo`")
    content["defaults"] = [_located(item, path.parent) for item in defaults]
    return content


def _located(item: Any, folder: Path) -> Any:
    if isinstance(item, Mapping):
        return {key: _located(value, folder) for key, value in item.items()}
    if isinstance(item, list):
        return [_located(value, folder) for value in item]
    if isinstance(item, str):
        found = absolute_choice(item, folder)
        return found if Path(found.rpartition(":")[0]).is_file() else absolute_choice(item, Path.cwd())
    return item


def _verb(name: str) -> Verb:
    for verb in PRIMARIES:
        if verb == name:
            return verb
    raise ConfigError(f"{SCHEMA}={name}: there is no such verb")

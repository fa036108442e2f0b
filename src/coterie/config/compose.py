"""Overrides of a command line, or a written `config.yaml`, to a frozen run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, overload

import hydra
import yaml  # type: ignore[import-untyped]
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from coterie.config.checks import check_run
from coterie.config.hints import any_of
from coterie.config.origins import Origins, flatten, trace
from coterie.config.overrides import Request, parse_overrides
from coterie.config.pieces import CHOICE, find_piece
from coterie.config.primary import PRIMARIES, GenerateRun, Primary, RLRun, SFTRun, Verb
from coterie.config.resolve import Resolution, resolve_tree
from coterie.config.source import CONF, PieceSource
from coterie.errors import ConfigError

R = TypeVar("R")
VERSION_BASE = "1.3"
VERB = "verb"

MAY_CHANGE: Mapping[str, str] = MappingProxyType(
    {
        "run.dir": "a moved folder is the same run",
        "run.resume": "says how to go on",
        "run.debug": "how the process behaves; the numbers are the same",
        "log.*": "what is written besides the record",
        "train.save_every": "when checkpoints are written",
        "train.keep": "which checkpoints stay",
        "train.patience": "when to stop",
        "train.smoke_test": "a check before step 0",
        "train.smoke_test_examples": "a check before step 0",
        "train.max_missing_reward_rate": "when to give up",
        "train.reward_concurrency": "how many rewards run side by side",
        "eval.*": "evaluation draws from its own seeds and trains nothing",
        "learner.micro_batch_tokens": "memory; the same sums in another order",
        "learner.head_chunk": "memory; the same sums in another order",
        "learner.gradient_checkpointing": "memory; activations are recomputed",
        "engine.max_rows": "memory; draws are keyed by coordinates",
        "engine.kv_cache_gib": "memory; draws are keyed by coordinates",
        "engine.prefill_tokens": "memory; draws are keyed by coordinates",
    }
)
"""Keys that a resumed run may set anew, and why; they are no part of the fingerprint.

`train.steps` is a further one where the learning rate doesn't depend on it (`optim.schedule=constant`).
"""


@dataclass(frozen=True)
class Resolved(Generic[R]):
    """A configuration, resolved and checked.

    Attributes:
        verb: "train", "sft", "dpo", "rm" or "generate".
        run: the frozen run.
        yaml: the configuration as text, complete and in a fixed order; `load_resolved` reads it.
        origins: each leaf key to who set it: "default", a file, a preset, a convention or the command line.
        fingerprint: hash of everything that changes results.
        notes: keys of presets that were left out, and why.
        tree: the configuration as plain values.
    """

    verb: Verb
    run: R
    yaml: str
    origins: Mapping[str, str]
    fingerprint: str
    notes: tuple[str, ...] = ()
    tree: Mapping[str, Any] = field(default_factory=dict, repr=False)


@overload
def compose(verb: Literal["train"], overrides: Sequence[str] = ()) -> Resolved[RLRun]:
    """An RL run."""


@overload
def compose(verb: Literal["sft"], overrides: Sequence[str] = ()) -> Resolved[SFTRun]:
    """An SFT run."""


@overload
def compose(verb: Literal["generate"], overrides: Sequence[str] = ()) -> Resolved[GenerateRun]:
    """Generation."""


@overload
def compose(verb: Verb, overrides: Sequence[str] = ()) -> Resolved[Any]:
    """Any verb."""


def compose(verb: Verb, overrides: Sequence[str] = ()) -> Resolved[Any]:
    """The run that `coterie VERB OVERRIDES` means.

    Raises:
        ConfigError: with every problem found, one a line.
    """
    primary = PRIMARIES[verb]
    requests = parse_overrides(overrides, primary)
    tree, layers = _hydra_compose(verb, [r.hydra for r in requests])
    origins = trace(layers, requests, primary)
    found = resolve_tree(tree, primary, origins)
    _check_added(found, requests)
    return _resolved(verb, found)


def load_resolved(path: Path | str) -> Resolved[Any]:
    """The run whose `yaml` was written to `path`: equal objects, the same fingerprint.

    Raises:
        ConfigError: for a file that is missing, no such record, or doesn't fit this version of coterie.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    named = tree.pop(VERB, None) if isinstance(tree, dict) else None
    verb = next((v for v in PRIMARIES if v == named), None)
    if verb is None:
        raise ConfigError(
            f"{path} is no resolved configuration: its first key would be `verb:` with {any_of(list(PRIMARIES))}"
        )
    primary = PRIMARIES[verb]
    for name, slot in primary.slots.items():
        if slot.many and isinstance(tree.get(name), list):
            tree[name] = {find_piece(slot, str(node[CHOICE])).name: node for node in tree[name]}
    origins = Origins({key: str(path) for key, _ in flatten(tree)}, is_record=True)
    return _resolved(verb, resolve_tree(tree, primary, origins))


def _hydra_compose(verb: Verb, texts: list[str]) -> tuple[dict[str, Any], list[ResultDefault]]:
    """Plain values and the layers they came from; interpolations resolved."""
    Plugins.instance().register(PieceSource)
    try:
        with _outside_hydra(), hydra.initialize_config_dir(str(CONF), job_name="coterie", version_base=VERSION_BASE):
            composed = hydra.compose(verb, overrides=texts)
            loader = GlobalHydra.instance().config_loader()
            layers = loader.compute_defaults_list(verb, texts, RunMode.RUN).defaults
            tree: Any = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error.msg or error).splitlines()[0]}") from error
    except (HydraException, ValueError) as error:
        raise ConfigError(_preset_problem(verb, str(error))) from error
    return tree, layers


@contextmanager
def _outside_hydra() -> Iterator[None]:
    """Compose inside a job of a sweep as anywhere else: Hydra allows one initialization at a time."""
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = running


def _preset_problem(verb: Verb, text: str) -> str:
    """Hydra's words on a preset's defaults list, in ours where the reason is known."""
    other = re.match(r"In 'experiment/(.+)': Could not override '(.+)'", text)
    if other:
        preset, slot = other.groups()
        return f"experiment={preset} chooses {slot}, which `coterie {verb}` doesn't have; it is for another verb"
    return f"the configuration can't be composed: {'; '.join(text.strip().splitlines()[:2])}"


def _check_added(found: Resolution, requests: Sequence[Request]) -> None:
    """Refuse `+key=value` anywhere but below open nodes."""
    open_nodes = [*found.primary.open_nodes, *(prefix for prefix, piece in found.pieces.items() if piece.open)]
    known = found.known_keys()
    for request in requests:
        if request.added and request.key in known:
            found.problems.append(f"{request.text}: {request.key} is there already; leave out the +")
        elif request.added and not any(request.key == n or request.key.startswith(f"{n}.") for n in open_nodes):
            unknown = [p for p in found.problems if p.startswith(f"{request.key}: unknown")]
            if not unknown:
                found.unknown(request.key, request.value, f"a + adds keys below {', '.join(open_nodes)} only; ")


def _resolved(verb: Verb, found: Resolution) -> Resolved[Any]:
    if found.problems:
        raise ConfigError("\n".join(found.problems))
    run = found.primary.cls(**found.fields)
    check_run(verb, run, found)
    origins = {key: found.origins[key] for key, _ in flatten(found.tree) if not key.endswith(CHOICE)}
    origins |= {name: found.origins[name] for name in found.primary.slots}
    return Resolved(
        verb=verb,
        run=run,
        yaml=_yaml(verb, found.primary, found.tree),
        origins=origins,
        fingerprint=_fingerprint(verb, found),
        notes=tuple(found.notes),
        tree=found.tree,
    )


def _yaml(verb: Verb, primary: Primary, tree: Mapping[str, Any]) -> str:
    """The tree as YAML; a slot that takes several is a list, so that its order is kept."""
    ordered: dict[str, Any] = {VERB: verb}
    for name, value in tree.items():
        many = name in primary.slots and primary.slots[name].many
        ordered[name] = list(value.values()) if many else value
    text: str = yaml.safe_dump(ordered, sort_keys=False, width=120)
    return text


def _fingerprint(verb: Verb, found: Resolution) -> str:
    """Hash of the leaves that change results; a file's piece counts by its content, not its place."""
    free = [*MAY_CHANGE]
    optim = found.fields.get("optim")
    if optim is not None and optim.schedule == "constant":
        free.append("train.steps")
    leaves: dict[str, Any] = {VERB: verb}
    for key, value in flatten(found.tree):
        if not any(fnmatchcase(key, pattern) for pattern in free):
            leaves[key] = value
    for prefix, piece in found.pieces.items():
        if piece.digest:
            leaves[f"{prefix}.{CHOICE}"] = f"{piece.name}:{piece.digest}"
        for name in piece.slot.files.get(piece.name, ()):
            file = Path(str(leaves[f"{prefix}.{name}"]))
            if file.is_file():
                leaves[f"{prefix}.{name}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    order = {name: list(found.tree[name]) for name, slot in found.primary.slots.items() if slot.many}
    text = json.dumps([leaves, order], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""What the pieces of a run need, and what the run makes: checked before step 0, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coterie.config.hints import any_of, did_you_mean
from coterie.config.primary import RLRun
from coterie.config.resolve import Resolution
from coterie.config.slots import SLOTS

SAMPLED = frozenset({"stream:sampler_logprobs"})
"""Made by every rollout."""

SCORED = frozenset({"stream:old_logprobs", "stream:ref_logprobs"})
"""Made by the learner before shaping and advantage, where somebody needs them."""


def needs_problems(run: RLRun, found: Resolution) -> Iterator[str]:
    """One text for every score, stream or span that a piece needs and nothing before it makes."""
    made = {*SAMPLED, *(_qualified(w) for w in written_by(run.reward))}
    for name, stage in run.filters.items():
        yield from _unmet(f"filters.{name}", found, stage.needs, made, " (filters run before the learner scores)")
    made |= SCORED
    for name, stage in run.shaping.items():
        yield from _unmet(f"shaping.{name}", found, stage.needs, made)
        made |= {_qualified(w) for w in getattr(stage, "writes", ())}
    yield from _unmet("advantage", found, run.advantage.needs, made)
    made |= {_qualified(w) for w in getattr(run.advantage, "writes", ())}
    for name, stage in run.transforms.items():
        yield from _unmet(f"transforms.{name}", found, stage.needs, made)
        made |= {_qualified(w) for w in getattr(stage, "writes", ())}
    yield from _unmet("loss", found, {f"stream:{n}" for n in run.loss.needs}, made)


def written_by(reward: Any) -> frozenset[str]:
    """Scores (and `stream:`, `span:` names) that a reward declares; always the score `reward`."""
    return frozenset({"reward", *getattr(reward, "writes", ())})


def reads_reference(run: RLRun) -> bool:
    """Whether a piece needs the reference policy's logprobs."""
    stages = [*run.filters.values(), *run.shaping.values(), run.advantage, *run.transforms.values()]
    return "ref_logprobs" in run.loss.needs or any("stream:ref_logprobs" in s.needs for s in stages)


def _qualified(name: str) -> str:
    return name if ":" in name else f"score:{name}"


def _unmet(prefix: str, found: Resolution, needs: Any, made: set[str], when: str = "") -> Iterator[str]:
    piece = found.pieces[prefix]
    for need in sorted(set(needs) - made):
        kind, _, name = need.partition(":")
        alike = [m.partition(":")[2] for m in made if m.startswith(f"{kind}:")]
        hint = f"; {did_you_mean(name, alike)}" if alike and kind == "score" else ""
        what = f"{piece.slot.name}={piece.choice} needs the {kind} {name!r}, which nothing makes{when}"
        yield f"{what}{hint}; {_remedy(kind, name)}".replace("?;", "? Or:")


def _remedy(kind: str, name: str) -> str:
    if kind == "stream" and name in ("values", "returns"):
        return "values come from a critic, which this run doesn't have; use an estimator without one, like grpo"
    if kind == "stream" and name in ("old_logprobs", "ref_logprobs"):
        return "the learner makes it after the filters; use it in shaping, advantage or loss"
    rewards = any_of([f"reward={choice}" for choice in SLOTS["reward"].choices])
    declared = name if kind == "score" else f"{kind}:{name}"
    return f"a reward that has {declared!r} in its `writes` would make it (your own file, or one of {rewards})"

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

VALUES = "stream:values"
"""Made by the critic at the same time, where somebody needs it: then there is a critic."""


def needs_problems(run: RLRun, found: Resolution) -> Iterator[str]:
    """One text for every score, stream or span that a piece needs and nothing before it makes."""
    made = {*SAMPLED, *(_qualified(w) for w in written_by(run.reward))}
    for name, stage in run.filters.items():
        yield from _unmet(f"filters.{name}", found, stage.needs, made, " (filters run before the learner scores)")
    made |= SCORED | {VALUES}
    for name, stage in run.shaping.items():
        yield from _unmet(f"shaping.{name}", found, stage.needs, made)
        made |= {_qualified(w) for w in getattr(stage, "writes", ())}
    yield from _unmet("advantage", found, run.advantage.needs, made)
    made |= {_qualified(w) for w in getattr(run.advantage, "writes", ())}
    for name, stage in run.transforms.items():
        yield from _unmet(f"transforms.{name}", found, stage.needs, made)
        made |= {_qualified(w) for w in getattr(stage, "writes", ())}
    yield from _unmet("loss", found, {f"stream:{n}" for n in run.loss.needs}, made)
    if reads_values(run) and "stream:returns" not in made:
        piece = found.pieces["advantage"]
        yield (
            "the stream 'values' is needed, so there is a critic, but advantage="
            f"{piece.choice} makes no stream 'returns' that it could learn from; use advantage=gae, or declare "
            "'stream:returns' in the `writes` of your own"
        )


def written_by(reward: Any) -> frozenset[str]:
    """Scores (and `stream:`, `span:` names) that a reward declares; always the score `reward`."""
    return frozenset({"reward", *getattr(reward, "writes", ())})


def reads_reference(run: RLRun) -> bool:
    """Whether a piece needs the reference policy's logprobs."""
    return _reads(run, "ref_logprobs")


def reads_values(run: RLRun) -> bool:
    """Whether a piece needs a critic's values."""
    return _reads(run, "values")


def warmup_steps(run: RLRun) -> int:
    """Training steps at the beginning in which a critic learns and the policy does not."""
    return run.critic.warmup_steps if reads_values(run) else 0


def _reads(run: RLRun, stream: str) -> bool:
    stages = [*run.filters.values(), *run.shaping.values(), run.advantage, *run.transforms.values()]
    return stream in run.loss.needs or any(f"stream:{stream}" in stage.needs for stage in stages)


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
    if kind == "stream" and name == "returns":
        return "an estimator with a critic makes it, like advantage=gae"
    if kind == "stream" and name in ("old_logprobs", "ref_logprobs", "values"):
        maker = "critic" if name == "values" else "learner"
        return f"the {maker} makes it after the filters; use it in shaping, advantage or loss"
    rewards = any_of([f"reward={choice}" for choice in SLOTS["reward"].choices])
    declared = name if kind == "score" else f"{kind}:{name}"
    return f"a reward that has {declared!r} in its `writes` would make it (your own file, or one of {rewards})"

"""One prompt, one completion a sample: examples become groups of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coterie.core.keys import seed_of
from coterie.core.metrics import Stat, maximum, mean
from coterie.core.protocols import Engine
from coterie.core.types import Completion, Example, Group, Request, Rollout, Sampling

Encode = Callable[[Example], tuple[int, ...]]


async def sample_groups(
    examples: Sequence[Example],
    engine: Engine,
    encode: Encode,
    *,
    n: int,
    sampling: Sampling,
    seed: int,
    step: int,
    purpose: str = "train",
) -> list[Group]:
    """Sample `n` completions of each example; one group an example, in order.

    Every draw is named by (purpose, seed, step, place in the batch, example id, sample), so it depends on nothing that
    happened before in the process.
    """
    prompts = [encode(example) for example in examples]
    requests = [
        Request(
            prompt_tokens=prompt,
            seeds=tuple(seed_of("sample", purpose, seed, step, place, example.id, i) for i in range(n)),
            sampling=sampling,
        )
        for place, (prompt, example) in enumerate(zip(prompts, examples, strict=True))
    ]
    completions = await engine.generate(requests)
    return [
        Group(example, tuple(as_rollout(prompt, c, i) for i, c in enumerate(row)))
        for example, prompt, row in zip(examples, prompts, completions, strict=True)
    ]


def as_rollout(prompt: Sequence[int], completion: Completion, index: int) -> Rollout:
    """The trajectory of one engine call: the prompt, then every sampled token as an action."""
    tokens = np.concatenate([np.asarray(prompt, dtype=np.int64), completion.tokens.astype(np.int64)])
    return Rollout(
        tokens=tokens,
        action_index=np.arange(len(prompt), len(tokens), dtype=np.int64),
        text=completion.text,
        finish_reason=completion.finish_reason,
        index=index,
        streams={"sampler_logprobs": completion.logprobs.astype(np.float64)},
        weights_version=completion.weights_version,
    )


def rollout_metrics(groups: Sequence[Group], prefix: str = "rollout") -> dict[str, Stat]:
    """Lengths and endings of sampled rollouts."""
    rollouts = [r for g in groups for r in g.rollouts]
    lengths = [r.num_actions for r in rollouts]
    prompts = [len(r.tokens) - r.num_actions for r in rollouts]
    return {
        f"{prefix}/tokens_mean": mean(sum(lengths), len(lengths)),
        f"{prefix}/tokens_max": maximum(max(lengths, default=0)),
        f"{prefix}/prompt_tokens_mean": mean(sum(prompts), len(prompts)),
        f"{prefix}/truncated_frac": mean(sum(r.truncated for r in rollouts), len(rollouts)),
    }

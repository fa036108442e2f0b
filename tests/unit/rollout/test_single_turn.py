import asyncio

import numpy as np

from coterie.core.metrics import values
from coterie.core.types import Completion, Example, Sampling
from coterie.rollout.single_turn import rollout_metrics, sample_groups


class ScriptedEngine:
    """Answers with the seed's last digit, as many times as the prompt is long."""

    def __init__(self):
        self.requests = []

    async def generate(self, requests):
        self.requests.extend(requests)
        return [[self.answer(len(r.prompt_tokens), seed) for seed in r.seeds] for r in requests]

    def answer(self, length, seed):
        tokens = np.full(length, seed % 10, dtype=np.int64)
        reason = "length" if length > 2 else "stop"
        return Completion(tokens, -np.ones(length), str(seed % 10) * length, reason, weights_version=7)


def example(name, length):
    return Example(name, ({"role": "user", "content": "x" * length},))


def encode(e):
    return tuple(range(100, 100 + len(e.prompt[0]["content"])))


def sample(engine, examples, **changes):
    settings = {"n": 3, "sampling": Sampling(), "seed": 0, "step": 1} | changes
    return asyncio.run(sample_groups(examples, engine, encode, **settings))


def test_prompts_come_first_and_every_sampled_token_is_an_action():
    groups = sample(ScriptedEngine(), [example("a", 2), example("b", 3)])
    assert [g.example.id for g in groups] == ["a", "b"]
    rollout = groups[1].rollouts[2]
    assert rollout.tokens[:3].tolist() == [100, 101, 102]
    assert rollout.action_index.tolist() == [3, 4, 5]
    assert rollout.streams["sampler_logprobs"].tolist() == [-1, -1, -1]
    assert (rollout.index, rollout.weights_version, rollout.truncated) == (2, 7, True)


def seeds(**changes):
    engine = ScriptedEngine()
    sample(engine, [example("a", 2), example("a", 2)], **changes)
    return [s for r in engine.requests for s in r.seeds]


def test_every_draw_has_its_own_seed_made_of_its_coordinates():
    base = seeds()
    assert len(set(base)) == 6, "the same example twice in a batch is sampled independently"
    assert seeds() == base
    for change in ({"seed": 1}, {"step": 2}, {"purpose": "eval"}):
        assert not set(seeds(**change)) & set(base)


def test_more_samples_begin_with_the_same_ones():
    assert seeds(n=5)[:3] == seeds(n=3)[:3]


def test_lengths_and_endings_are_counted():
    groups = sample(ScriptedEngine(), [example("a", 1), example("b", 3)], n=1)
    found = values(rollout_metrics(groups))
    assert found["rollout/tokens_mean"] == 2
    assert found["rollout/tokens_max"] == 3
    assert found["rollout/truncated_frac"] == 0.5

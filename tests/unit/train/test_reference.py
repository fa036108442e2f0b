import asyncio

import numpy as np
import pytest
import torch

from coterie.core.types import Example, Group, Rollout
from coterie.train.reference import CHUNK, cache_key, with_reference


def groups(count, shift=0):
    found = []
    for n in range(count):
        tokens = np.arange(3 + n % 4) + n + shift
        found.append(Group(Example(str(n), ()), tuple(Rollout(tokens, np.array([1, 2]), "", "stop") for _ in range(2))))
    return found


class Scorer:
    def __init__(self):
        self.calls = 0

    async def __call__(self, batch):
        self.calls += 1
        return batch.tokens[batch.action_index].float() / 7


def run(groups, scorer, folder, key="k", **options):
    return asyncio.run(with_reference(groups, scorer, folder=folder, key=key, **options))


def test_each_action_token_gets_its_own_and_the_second_time_nothing_is_computed(tmp_path):
    scorer, data, notes = Scorer(), groups(CHUNK + 3), []
    first = run(data, scorer, tmp_path, note=notes.append)
    assert scorer.calls == 2 and len(notes) == 1
    again = run(data, scorer, tmp_path, note=notes.append)
    assert scorer.calls == 2 and len(notes) == 1
    for found in (first, again):
        for group in found:
            for r in group.rollouts:
                want = torch.tensor(r.tokens[r.action_index]).float() / 7
                assert r.streams["ref_logprobs"].tolist() == want.double().tolist()


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(b"x"), lambda p: p.write_bytes(p.read_bytes()[:-4])])
def test_a_damaged_file_is_made_again(tmp_path, damage):
    scorer, data = Scorer(), groups(3)
    run(data, scorer, tmp_path)
    damage(tmp_path / "reference" / "k.safetensors")
    run(data, scorer, tmp_path)
    assert scorer.calls == 2
    run(data, scorer, tmp_path)
    assert scorer.calls == 2


def test_a_stop_request_leaves_nothing(tmp_path):
    assert run(groups(3), Scorer(), tmp_path, stopping=lambda: True) is None
    assert list(tmp_path.iterdir()) == []


def test_the_key_knows_data_weights_and_dtype(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    data = groups(3)
    key = cache_key(data, str(tmp_path), torch.float32)
    assert cache_key(groups(3), str(tmp_path), torch.float32) == key
    others = {
        cache_key(groups(3, shift=1), str(tmp_path), torch.float32),
        cache_key(data[::-1], str(tmp_path), torch.float32),
        cache_key(data, str(tmp_path), torch.bfloat16),
        cache_key(data, "owner/name", torch.float32),
    }
    weights.write_bytes(b"two")
    others.add(cache_key(data, str(tmp_path), torch.float32))
    assert len(others | {key}) == 6

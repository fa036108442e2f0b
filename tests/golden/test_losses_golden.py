"""Every loss against naive loops: value and gradient, whole and split into micro-batches."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

import coterie.algos
from coterie.core.batch import Batch, Counts, Outputs
from coterie.core.protocols import HasPrepass

torch.set_num_threads(1)
HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "losses.json").read_text())
TOLERANCE = 1e-8


def make_batch(d, on_policy=False):
    total, lengths = sum(d["lengths"]), d["lengths"]
    starts = torch.tensor([0] + [n + 1 for n in lengths]).cumsum(0)
    streams = {"sampler_logprobs": d["sampler"], "ref_logprobs": d["ref"]}
    streams |= {"values": d["old_values"], "returns": d["returns"]}
    if not on_policy:
        streams["old_logprobs"] = d["old"]
    group = torch.tensor(d["group"])
    tokens = torch.zeros(len(set(d["group"])), dtype=torch.int64).index_add(0, group, torch.tensor(lengths))
    rewards = [float("nan") if r is None else r for r in d["rewards"]]
    return Batch(
        tokens=torch.arange(total + len(lengths)),
        cu_seqlens=starts,
        action_index=torch.cat([torch.arange(s + 1, s + 1 + n) for s, n in zip(starts[:-1], lengths, strict=True)]),
        sequence_id=torch.tensor(d["sequence"]),
        advantages=torch.tensor(d["advantages"], dtype=torch.float64),
        streams={name: torch.tensor(values, dtype=torch.float64) for name, values in streams.items()},
        group_id=group,
        prefix_length=torch.ones(len(lengths), dtype=torch.int64),
        group_sequences=torch.bincount(group)[group],
        group_tokens=tokens[group],
        rewards=torch.tensor(rewards, dtype=torch.float64),
        bootstrap_values=torch.zeros(len(lengths), dtype=torch.float64),
        counts=Counts(total, len(lengths), len(tokens)),
    )


def make_outputs(d, logprobs, index=None):
    index = torch.arange(len(logprobs)) if index is None else index

    def stream(name):
        return torch.tensor(d[name], dtype=torch.float64)[index]

    current = logprobs[index]
    extra = {"sum_probs_squared": stream("squares"), "score": current}
    return Outputs(current, stream("entropy"), current, extra)


def build(case):
    return getattr(coterie.algos, case["class"])(**case["fields"])


def prepared(loss, d, batch, logprobs):
    if isinstance(loss, HasPrepass):
        return batch.with_streams(*loss.prepass(make_outputs(d, logprobs.detach()), batch))
    return batch


def name_of(case):
    fields = ",".join(f"{k}={v}" for k, v in case["fields"].items())
    return f"{case['class']}({fields}){'-on-policy' if case['on_policy'] else ''}"


CASES = [(c, GOLDEN["inputs"]) for c in GOLDEN["policy"]]
CASES += [(c, GOLDEN[c.get("inputs", "pairs")]) for c in GOLDEN["preference"]]


@pytest.mark.parametrize(("case", "d"), CASES, ids=[name_of(c) for c, _ in CASES])
def test_value_and_gradient_are_those_of_the_naive_loop(case, d):
    loss = build(case)
    logprobs = torch.tensor(d["logprobs"], dtype=torch.float64, requires_grad=True)
    batch = prepared(loss, d, make_batch(d, case["on_policy"]), logprobs)
    found = loss(make_outputs(d, logprobs), batch).loss
    found.backward()
    assert found.item() == pytest.approx(case["loss"], rel=0, abs=TOLERANCE)
    torch.testing.assert_close(
        logprobs.grad, torch.tensor(case["gradient"], dtype=torch.float64), rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize(("case", "d"), CASES, ids=[name_of(c) for c, _ in CASES])
def test_micro_batches_add_up(case, d):
    """Whole groups, in another order, one micro-batch each: losses add up, gradients are the same."""
    loss = build(case)
    logprobs = torch.tensor(d["logprobs"], dtype=torch.float64, requires_grad=True)
    batch = prepared(loss, d, make_batch(d, case["on_policy"]), logprobs)
    total = 0.0
    for group in sorted(set(d["group"]), reverse=True):
        rows = [s for s, g in enumerate(d["group"]) if g == group]
        index = torch.tensor([t for t, s in enumerate(d["sequence"]) if s in rows])
        part = loss(make_outputs(d, logprobs, index), batch.select(rows)).loss
        part.backward()
        total += part.item()
    assert total == pytest.approx(case["loss"], rel=0, abs=TOLERANCE)
    torch.testing.assert_close(
        logprobs.grad, torch.tensor(case["gradient"], dtype=torch.float64), rtol=0, atol=TOLERANCE
    )


def test_the_file_is_what_the_loops_make():
    spec = importlib.util.spec_from_file_location("make_losses", HERE / "make_losses.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = json.loads(json.dumps(module.make()))
    assert made.keys() == GOLDEN.keys()
    for kind in ("inputs", "pairs", "labelled"):
        assert made[kind] == GOLDEN[kind]
    for kind in ("policy", "preference"):
        assert [name_of(c) for c in made[kind]] == [name_of(c) for c in GOLDEN[kind]]
        for ours, theirs in zip(made[kind], GOLDEN[kind], strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12, abs=1e-12)


def test_every_case_moves_something():
    """A golden value that is the same with and without a field would prove nothing."""
    seen = set()
    for case in GOLDEN["policy"]:
        result = (case["class"], case["on_policy"], *(round(x, 7) for x in (case["loss"], *case["gradient"])))
        assert result not in seen, name_of(case)
        seen.add(result)

import pytest
import torch

from coterie.algos.aggregate import (
    AGGREGATIONS,
    aggregated,
    check_aggregation,
    kept_token_weights,
    segment_mean,
    segment_sum,
    token_weights,
)

VALUES = torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0, 20.0], dtype=torch.float64)
LENGTHS, GROUPS = [3, 1, 2, 0], [0, 0, 1, 1]
EXPECTED = {
    "token_mean": 40 / 6,
    "sequence_mean": (2 + 4 + 15 + 0) / 4,
    "sequence_sum": (6 + 4 + 30) / 4,
    "fixed_length": (6 + 4 + 30) / (4 * 8),
    "prompt_mean": (10 / 4 + 30 / 2) / 2,
    "token_sum": 40.0,
}


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_each_aggregation_is_its_formula(flat_batch, mode):
    fixed = 8 if mode == "fixed_length" else 0
    batch = flat_batch(LENGTHS, GROUPS)
    assert float((VALUES * token_weights(batch, mode, fixed)).sum()) == pytest.approx(EXPECTED[mode], abs=1e-12)
    alone = aggregated(VALUES, batch.sequence_id, mode, group_id=batch.group_id, num_sequences=4, fixed_length=fixed)
    assert float(alone) == pytest.approx(EXPECTED[mode], abs=1e-12)


def test_trailing_sequences_without_tokens_count_only_when_said():
    three = aggregated(VALUES, torch.tensor([0, 0, 0, 1, 2, 2]), "sequence_sum")
    assert float(three) == pytest.approx(40 / 3)


def test_weights_are_constants_and_aggregation_is_differentiable():
    values = VALUES.clone().requires_grad_()
    total = aggregated(values, torch.tensor([0, 0, 0, 1, 2, 2]), "sequence_mean")
    total.backward()
    torch.testing.assert_close(values.grad, torch.tensor([1, 1, 1, 3, 1.5, 1.5], dtype=torch.float64) / 9)


def test_length_normalisation_example_of_cs336():
    """specs/cs336.md §1.18: ratio 1, advantage 2, rows of 4 and 7 tokens."""
    values, rows = torch.full((11,), 2.0, requires_grad=True), torch.tensor([0] * 4 + [1] * 7)
    aggregated(values, rows, "sequence_mean").backward()
    torch.testing.assert_close(values.grad * 2, torch.tensor([0.25] * 4 + [1 / 7] * 7))
    values.grad = None
    aggregated(values, rows, "fixed_length", fixed_length=7).backward()
    torch.testing.assert_close(values.grad * 2, torch.full((11,), 1 / 7))


def test_dr_grpo_divides_by_a_constant_not_by_the_padded_width(flat_batch):
    """peers.md §2.9, trap 5: the longest row of a batch must not change what another row weighs."""
    short, long = flat_batch([2, 3]), flat_batch([2, 30])
    assert token_weights(short, "fixed_length", 16)[0] == token_weights(long, "fixed_length", 16)[0]


@pytest.mark.parametrize(
    ("mode", "length", "words"),
    [("fixed_length", 0, "fixed_length is 0"), ("token_mean", 5, "no effect"), ("median", 0, "not one of")],
)
def test_contradictions_are_refused(mode, length, words):
    with pytest.raises(ValueError, match=words):
        check_aggregation(mode, length)


def test_prompt_mean_needs_groups():
    with pytest.raises(ValueError, match="group_id"):
        aggregated(VALUES, torch.tensor([0, 0, 0, 1, 2, 2]), "prompt_mean")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_mean", (2 + 3 + 10) / 3),
        ("sequence_mean", (2.5 + 10) / 2),
        ("sequence_sum", (5 + 10) / 2),
        ("prompt_mean", (2.5 + 10) / 2),
        ("fixed_length", (5 + 10) / (2 * 4)),
    ],
)
def test_denominators_of_kept_tokens_forget_empty_sequences(flat_batch, mode, expected):
    keep = torch.tensor([False, True, True, False, True, False])
    weights = kept_token_weights(flat_batch(LENGTHS, GROUPS), keep, mode, 4 if mode == "fixed_length" else 0)
    assert float((VALUES * weights).sum()) == pytest.approx(expected, abs=1e-12)
    assert torch.all(weights[~keep] == 0)


def test_kept_group_without_tokens_leaves_the_prompt_mean(flat_batch):
    keep = torch.tensor([True, True, True, True, False, False])
    weights = kept_token_weights(flat_batch(LENGTHS, GROUPS), keep, "prompt_mean")
    assert float((VALUES * weights).sum()) == pytest.approx(10 / 4)


def test_segments():
    rows = torch.tensor([0, 0, 2])
    values = torch.tensor([1.0, 2.0, 5.0])
    assert segment_sum(values, rows, 4).tolist() == [3, 0, 5, 0]
    assert segment_mean(values, rows, 4).tolist() == [1.5, 0, 5, 0]


def test_weights_take_the_dtype_asked_for(flat_batch):
    assert token_weights(flat_batch([2]), "token_mean", dtype=torch.float32).dtype == torch.float32


def test_a_batch_without_tokens_has_no_division_by_zero():
    assert float(aggregated(torch.zeros(0), torch.zeros(0, dtype=torch.int64))) == 0.0

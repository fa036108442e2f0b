import math
from dataclasses import dataclass, replace

import pytest
import torch

from coterie.algos import DPO, PreferenceLoss
from coterie.algos.pairs import pair_index
from coterie.core.batch import Outputs
from coterie.core.metrics import values

LOGPROBS = [-1.0, -2.0, -0.5, -1.5, -1.0, -3.0, -0.2]


def outputs(**extra):
    x = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    return Outputs(x, extra={k: torch.tensor(v, dtype=torch.float64) for k, v in extra.items()})


def batch_of(flat_batch, rewards=(0.0, 1.0, 2.0, -1.0), groups=(0, 0, 1, 1)):
    ref = [-1.1, -1.1, -1.1, -1.1, -1.1, -1.1, -1.1]
    return flat_batch([2, 1, 1, 3], list(groups), list(rewards), ref_logprobs=ref)


def test_the_higher_reward_is_chosen(flat_batch):
    chosen, rejected = pair_index(batch_of(flat_batch))
    assert (chosen.tolist(), rejected.tolist()) == ([1, 2], [0, 3])


def test_order_in_the_batch_does_not_matter(flat_batch):
    batch = batch_of(flat_batch, groups=(5, 2, 5, 2))
    chosen, rejected = pair_index(batch)
    assert (chosen.tolist(), rejected.tolist()) == ([1, 2], [3, 0])


def test_half_a_pair_is_an_error(flat_batch):
    with pytest.raises(ValueError, match="group 1 has 1 of its sequences"):
        pair_index(batch_of(flat_batch).select([0, 1, 2]))
    assert DPO.whole_groups


@pytest.mark.parametrize("rewards", [(1.0, 1.0, 2.0, 0.0), (1.0, math.nan, 2.0, 0.0), (math.nan, math.nan, 2.0, 0.0)])
def test_a_group_without_a_preference_is_an_error(flat_batch, rewards):
    with pytest.raises(ValueError, match="group 0 has no preference"):
        pair_index(batch_of(flat_batch, rewards))


def test_sums_means_and_reference(flat_batch):
    pairs = DPO().pairs(outputs(), batch_of(flat_batch))
    assert pairs.chosen.tolist() == pytest.approx([-0.5, -1.5])
    assert pairs.rejected.tolist() == pytest.approx([-3.0, -4.2])
    assert pairs.means[1].tolist() == pytest.approx([-1.5, -1.4])
    assert pairs.log_ratios[1].tolist() == pytest.approx([-0.8, -0.9])


def test_tail_weight_bites_beyond_the_shorter_answer(flat_batch):
    pairs = DPO(tail_weight=0.5).pairs(outputs(), batch_of(flat_batch))
    assert pairs.chosen.tolist() == pytest.approx([-0.5, -1.5])
    assert pairs.rejected.tolist() == pytest.approx([-1.0 - 1.0, -1.0 - 1.6])
    assert pairs.ref_rejected.tolist() == pytest.approx([-1.65, -2.2])


@dataclass(frozen=True)
class Margin(PreferenceLoss):
    """A user's own loss."""

    def pair_loss(self, pairs, batch):
        return -(pairs.log_ratios[0] - pairs.log_ratios[1])


def test_a_loss_of_ones_own_is_one_method(flat_batch):
    out = Margin()(outputs(), batch_of(flat_batch))
    assert out.loss.item() == pytest.approx(-((0.6 + 0.8) + (-0.4 + 0.9)) / 2)
    with pytest.raises(TypeError, match="pair_loss"):
        PreferenceLoss()(outputs(), batch_of(flat_batch))


def test_metrics(flat_batch):
    shown = values(Margin(beta=0.5)(outputs(), batch_of(flat_batch)).metrics)
    assert shown["preference/chosen_reward"] == pytest.approx(0.5 * (0.6 - 0.4) / 2)
    assert shown["preference/rejected_reward"] == pytest.approx(0.5 * (-0.8 - 0.9) / 2)
    assert shown["preference/margin"] == pytest.approx(0.5 * (1.4 + 0.5) / 2)
    assert shown["preference/accuracy"] == 1.0
    assert shown["preference/chosen_logprob"] == pytest.approx(-1.0)
    assert shown["preference/rejected_logprob"] == pytest.approx(-3.6)
    assert shown["preference/chosen_nll"] == pytest.approx(1.0)
    assert shown["preference/loss"] == pytest.approx(-(1.4 + 0.5) / 2)


def test_supervised_term_is_each_answers_token_mean(flat_batch):
    batch = batch_of(flat_batch, rewards=(1.0, 0.0, 2.0, -1.0))
    plain, more = Margin()(outputs(), batch), Margin(sft_coef=0.3)(outputs(), batch)
    assert (more.loss - plain.loss).item() == pytest.approx(0.3 * (1.5 + 1.5) / 2)


def test_wpo_weights_are_constants(flat_batch):
    squares = [0.5, 0.5, 0.25, 0.2, 0.9, 0.8, 0.7]
    batch = batch_of(flat_batch)
    loss = Margin(weighted=True)
    assert loss.wants == {"sum_probs_squared"}
    assert Margin().wants == frozenset()
    found = outputs(sum_probs_squared=squares)
    out = loss(found, batch)
    logs = [x - math.log(s) for x, s in zip(LOGPROBS, squares, strict=True)]
    w = [math.exp(sum(logs[:2]) / 2 + logs[2]), math.exp(logs[3] + sum(logs[4:]) / 3)]
    assert out.loss.item() == pytest.approx(-(1.4 * w[0] + 0.5 * w[1]) / 2)
    out.loss.backward()
    assert found.logprobs.grad[2].item() == pytest.approx(-w[0] / 2)
    with pytest.raises(ValueError, match="sum_probs_squared"):
        loss(outputs(), batch)


def test_gradient_does_not_reach_the_reference(flat_batch):
    batch = batch_of(flat_batch)
    ref = batch.streams["ref_logprobs"].clone().requires_grad_()
    Margin()(outputs(), replace(batch, streams={"ref_logprobs": ref})).loss.backward()
    assert ref.grad is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"beta": 0.0}, "beta"), ({"sft_coef": -1.0}, "sft_coef"), ({"tail_weight": 1.1}, "tail_weight")],
)
def test_values_out_of_range_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        DPO(**fields)

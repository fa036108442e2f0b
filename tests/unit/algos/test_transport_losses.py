import pytest
import torch

from coterie.algos import AOT, DPO, AOTUnpaired
from coterie.core.batch import Outputs
from coterie.core.protocols import HasPrepass

REF = [-1.0] * 6
LOGPROBS = [-0.1, -1.7, -2.0, -0.4, -1.1, -1.4]


def batch_of(flat_batch, pairs=3):
    return flat_batch([1] * 2 * pairs, [g for g in range(pairs) for _ in range(2)], [1.0, 0.0] * pairs,
                      ref_logprobs=REF[: 2 * pairs])  # fmt: skip


def run(loss, batch, logprobs):
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    ready = batch.with_streams(*loss.prepass(Outputs(x.detach()), batch)) if isinstance(loss, HasPrepass) else batch
    out = loss(Outputs(x), ready)
    out.loss.backward()
    return ready, out.loss.item(), x.grad


@pytest.mark.parametrize("cls", [AOT, AOTUnpaired])
def test_one_pair_is_dpo(flat_batch, cls):
    batch = batch_of(flat_batch, 1)
    _, value, grad = run(cls(beta=0.4, label_smoothing=0.1), batch, LOGPROBS[:2])
    _, expected, slope = run(DPO(beta=0.4, label_smoothing=0.1), batch, LOGPROBS[:2])
    assert value == pytest.approx(expected)
    torch.testing.assert_close(grad, slope)


def test_unpaired_gradient_is_that_of_the_sorted_sum(flat_batch):
    _, value, grad = run(AOTUnpaired(beta=0.7), batch_of(flat_batch), LOGPROBS)
    x = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    scores = x + 1.0
    chosen, rejected = torch.sort(scores[0::2]).values, torch.sort(scores[1::2]).values
    expected = -torch.nn.functional.logsigmoid(0.7 * (chosen - rejected)).mean()
    expected.backward()
    assert value == pytest.approx(expected.item())
    torch.testing.assert_close(grad, x.grad)


def test_ranks_come_from_the_whole_batch(flat_batch):
    for cls in (AOT, AOTUnpaired):
        with pytest.raises(ValueError, match="prepass"):
            cls()(Outputs(torch.tensor(LOGPROBS, dtype=torch.float64)), batch_of(flat_batch))
        assert cls().needs == {"ref_logprobs"}


def test_an_answer_without_tokens_is_refused(flat_batch):
    batch = flat_batch([1, 0], [0, 0], [1.0, 0.0], ref_logprobs=[-1.0])
    with pytest.raises(ValueError, match="at least one action token"):
        AOT().prepass(Outputs(torch.tensor([-1.0], dtype=torch.float64)), batch)


def test_values_out_of_range_are_refused():
    with pytest.raises(ValueError, match="label_smoothing"):
        AOT(label_smoothing=0.5)

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coterie.errors import ModelError
from coterie.learners.head import LogitMap, action_logprobs, head_of

ROWS, WIDTH, VOCABULARY = 23, 6, 37
EVERYTHING = frozenset({"entropy", "sum_probs_squared"})
MAPS = [
    LogitMap(),
    LogitMap(temperature=0.6),
    LogitMap(scale=2.5, temperature=1.7),
    LogitMap(softcap=1.5),
    LogitMap(scale=0.8, softcap=3.0, temperature=0.7),
]


def inputs(bias=True, dtype=torch.float64, rows=ROWS, vocabulary=VOCABULARY):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(rows, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    shift = torch.randn(vocabulary, generator=generator, dtype=dtype, requires_grad=True) if bias else None
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    return hidden, weight, shift, targets


def plain(hidden, weight, bias, targets, logits):
    """The same by the definition, with the whole [A, V] tensor."""
    z = hidden @ weight.T
    z = (z if bias is None else z + bias) * logits.scale
    if logits.softcap:
        z = logits.softcap * torch.tanh(z / logits.softcap)
    log_p = torch.log_softmax(z / logits.temperature, 1)
    p = log_p.exp()
    return log_p.gather(1, targets[:, None])[:, 0], -(p * log_p).sum(1), (p * p).sum(1)


@pytest.mark.parametrize("chunk", [1, 5, ROWS - 1, ROWS, 1000])
@pytest.mark.parametrize("logits", MAPS)
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_the_full_softmax(chunk, logits, bias):
    leaves = inputs(bias)
    upstream = torch.randn(3, ROWS, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    want = plain(*leaves, logits)
    sum((u * v).sum() for u, v in zip(upstream, want, strict=True)).backward()
    expected = [leaf.grad.clone() for leaf in leaves[:3] if leaf is not None]
    for leaf in leaves[:3]:
        if leaf is not None:
            leaf.grad = None
    got = action_logprobs(*leaves, logits=logits, chunk=chunk, wants=EVERYTHING)
    values = (got.logprobs, got.entropy, got.sum_probs_squared)
    for value, reference in zip(values, want, strict=True):
        torch.testing.assert_close(value, reference)
    sum((u * v).sum() for u, v in zip(upstream, values, strict=True)).backward()
    for leaf, reference in zip([x for x in leaves[:3] if x is not None], expected, strict=True):
        torch.testing.assert_close(leaf.grad, reference)


@pytest.mark.parametrize("name", ["logprobs", "entropy", "sum_probs_squared"])
def test_one_output_alone_has_its_own_gradient(name):
    leaves = inputs()
    reference = dict(zip(("logprobs", "entropy", "sum_probs_squared"), plain(*leaves, MAPS[1]), strict=True))
    want = torch.autograd.grad(reference[name].sum(), leaves[:3])
    wants = EVERYTHING if name != "logprobs" else frozenset()
    got = action_logprobs(*leaves, logits=MAPS[1], chunk=7, wants=wants)
    torch.testing.assert_close(torch.autograd.grad(getattr(got, name).sum(), leaves[:3]), want)


def test_outputs_nobody_asked_for_are_absent():
    got = action_logprobs(*inputs(), logits=LogitMap(), chunk=4)
    assert got.entropy is None and got.sum_probs_squared is None


def test_a_frozen_head_still_passes_the_gradient_to_the_body():
    hidden, weight, bias, targets = inputs()
    weight, bias = weight.detach(), bias.detach()
    want = torch.autograd.grad(plain(hidden, weight, bias, targets, MAPS[0])[0].sum(), hidden)
    got = action_logprobs(hidden, weight, bias, targets, logits=MAPS[0], chunk=5).logprobs.sum()
    torch.testing.assert_close(torch.autograd.grad(got, hidden), want)


def test_logprobs_stay_exact_when_logits_are_huge():
    hidden, weight, bias, targets = inputs(dtype=torch.float32)
    got = action_logprobs(hidden * 200, weight, bias, targets, logits=LogitMap(), chunk=5, wants=EVERYTHING)
    want = plain(hidden.double() * 200, weight.double(), bias.double(), targets, LogitMap())
    torch.testing.assert_close(got.logprobs.double(), want[0], rtol=1e-5, atol=1e-3)
    assert torch.isfinite(got.entropy).all() and (got.entropy > -1e-3).all()


def test_half_precision_hidden_states_give_fp32_logprobs():
    hidden, weight, bias, targets = inputs(dtype=torch.float32)
    got = action_logprobs(hidden.bfloat16(), weight, bias, targets, logits=LogitMap(), chunk=5)
    want = plain(hidden, weight, bias, targets, LogitMap())[0]
    assert got.logprobs.dtype == torch.float32
    torch.testing.assert_close(got.logprobs, want, rtol=0.05, atol=0.05)
    gradient = torch.autograd.grad(got.logprobs.sum(), weight)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(want.sum(), weight)[0], rtol=0.1, atol=0.1)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


@pytest.mark.parametrize("wants", [frozenset(), EVERYTHING])
def test_a_tokens_times_vocabulary_tensor_never_exists(wants):
    rows, vocabulary, chunk = 300, 500, 16
    leaves = inputs(dtype=torch.float32, rows=rows, vocabulary=vocabulary)
    with Largest() as largest:
        outputs = action_logprobs(*leaves, logits=LogitMap(softcap=2.0), chunk=chunk, wants=wants)
        total = outputs.logprobs.sum()
        if wants:
            total = total + outputs.entropy.sum() + outputs.sum_probs_squared.sum()
        total.backward()
    assert largest.elements <= chunk * vocabulary < rows * vocabulary
    with Largest() as whole:
        plain(*leaves, LogitMap())
    assert whole.elements == rows * vocabulary  # the meter does see such a tensor


def test_a_second_backward_pass_is_refused_rather_than_wrong():
    leaves = inputs()
    total = action_logprobs(*leaves, logits=LogitMap(), chunk=5).logprobs.sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        total.backward()


def test_the_map_is_read_from_the_configuration(lab):
    assert LogitMap.of(lab.build("llama").config) == LogitMap()
    assert LogitMap.of(lab.build("gemma2").config, 0.5) == LogitMap(softcap=2.0, temperature=0.5)
    assert LogitMap.of(lab.build("cohere").config).scale == pytest.approx(0.3)
    assert LogitMap.of(lab.build("granite").config).scale == pytest.approx(0.25)


def test_a_model_without_output_layer_is_refused(lab):
    with pytest.raises(ModelError, match="output layer"):
        head_of(lab.build("llama").model)

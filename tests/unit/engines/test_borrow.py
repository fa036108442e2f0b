import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig

from coterie.engines.borrow import borrowed


def trace(module):
    """Everything that borrowing may touch."""
    return (
        [m.training for m in module.modules()],
        module.config._attn_implementation,
        ["forward" in m.__dict__ for m in module.modules()],
        [p.requires_grad for p in module.parameters()],
        torch.is_grad_enabled(),
    )


def test_a_borrowed_module_comes_back_as_it_was(make_model):
    module = make_model("llama")
    module.model.layers[0].eval()
    before = trace(module)
    with borrowed(module, "eager", None):
        assert not any(m.training for m in module.modules())
        assert module.config._attn_implementation == "eager"
        assert not torch.is_grad_enabled()
    assert trace(module) == before


def test_it_comes_back_after_an_error_too(make_model):
    module = make_model("llama")
    before = trace(module)
    with pytest.raises(RuntimeError), borrowed(module, "eager", None):
        raise RuntimeError
    assert trace(module) == before


def test_gradients_work_afterwards(make_model):
    module = make_model("qwen3")
    ids = torch.tensor([[5, 6, 7]])
    with borrowed(module, None, None):
        assert not module(input_ids=ids).logits.requires_grad
    module(input_ids=ids).logits.sum().backward()
    assert all(p.grad is not None for p in module.parameters())


class Wide(nn.Module):
    """Just enough of a model with linear layers that are large enough for oneDNN."""

    def __init__(self):
        super().__init__()
        self.config = PreTrainedConfig(attn_implementation="sdpa")
        self.one, self.two, self.small = nn.Linear(600, 500), nn.Linear(600, 500, bias=False), nn.Linear(3, 4)


def test_large_linear_layers_compute_the_same_by_another_library():
    torch.manual_seed(0)
    module = Wide()
    x = torch.randn(3, 5, 600)
    want = [module.one(x), module.two(x)]
    with borrowed(module, None, None):
        assert ("forward" in module.one.__dict__) == torch.backends.mkldnn.is_available()
        assert "forward" not in module.small.__dict__
        for got, w in zip((module.one(x), module.two(x)), want, strict=True):
            torch.testing.assert_close(got, w.detach(), atol=1e-5, rtol=1e-5)
    assert "forward" not in module.one.__dict__


def test_weights_are_read_in_place():
    module = Wide()
    x = torch.ones(2, 600)
    with borrowed(module, None, None):
        module.two.weight.data.zero_()
        assert not module.two(x).any()


def test_another_dtype_is_autocast(make_model):
    module = make_model("llama")
    with borrowed(module, None, torch.bfloat16):
        assert module(input_ids=torch.tensor([[5, 6]])).logits.dtype == torch.bfloat16
    assert module(input_ids=torch.tensor([[5, 6]])).logits.dtype == torch.float32
    assert next(module.parameters()).dtype == torch.float32


class OtherRMSNorm(nn.Module):
    """Has the attributes of an RMS norm but scales by one plus its weight."""

    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.linspace(0.5, 2, 8)), 1e-6

    def forward(self, x):
        return (1 + self.weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def test_norms_are_computed_in_one_call_if_they_are_what_they_seem(make_model):
    module = make_model("qwen3")
    module.other = OtherRMSNorm()
    with torch.no_grad():
        for m in module.modules():
            if type(m).__name__ == "Qwen3RMSNorm":
                m.weight.uniform_(0.5, 2)
    x = torch.randn(3, 1, 32)
    want = module.model.norm(x)
    with borrowed(module, None, None):
        assert "forward" in module.model.norm.__dict__
        assert "forward" not in module.other.__dict__
        torch.testing.assert_close(module.model.norm(x), want.detach(), atol=1e-6, rtol=1e-5)
    assert "forward" not in module.model.norm.__dict__

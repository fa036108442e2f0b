import pytest
import torch
from transformers import BertConfig, BertModel, BloomConfig, BloomForCausalLM, T5Config, T5ForConditionalGeneration

from coterie.engines.attention import register
from coterie.engines.probe import probe
from coterie.errors import EngineError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def registered():
    register()


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt_neox", "gpt2"])
def test_full_attention_models_are_plain(make_model, name):
    module = make_model(name)
    nature = probe(module, CPU, None)
    assert nature.refusal == ""
    assert nature.window == 0
    heads = {"gpt_neox": 4, "gpt2": 4}.get(name, 2)
    assert nature.bytes_per_token == 2 * 2 * heads * 8 * 4
    assert module.training


def test_a_sliding_window_is_plain_while_rows_are_shorter(make_model):
    nature = probe(make_model("mistral_window"), CPU, None)
    assert (nature.refusal, nature.window) == ("", 8)


@pytest.mark.parametrize(("name", "reason"), [("gemma2", "softcap"), ("lfm2", "conv")])
def test_what_is_not_plain_is_named(make_model, name, reason):
    assert reason in probe(make_model(name), CPU, None).refusal


def test_attention_that_transformers_cannot_replace_is_named():
    module = BloomForCausalLM(BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2))
    assert "replaced" in probe(module, CPU, None).refusal


def test_a_model_that_mixes_packed_prompts_is_found_out(make_model):
    module = make_model("llama")
    norm = module.model.norm
    norm.register_forward_hook(lambda _, args, out: out + out.roll(1, dims=1) * 0.1)
    assert "differ" in probe(module, CPU, None).refusal


def test_half_precision_is_not_taken_for_a_difference(make_model):
    assert probe(make_model("qwen3").bfloat16(), CPU, None).refusal == ""
    assert probe(make_model("qwen3"), CPU, torch.bfloat16).refusal == ""


@pytest.mark.parametrize(
    "module",
    [
        lambda: BertModel(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)),
        lambda: T5ForConditionalGeneration(T5Config(d_model=16, num_layers=1, num_heads=2, d_ff=8, vocab_size=50)),
    ],
)
def test_other_models_are_refused(module):
    with pytest.raises(EngineError, match="decoder-only"):
        probe(module(), CPU, None)

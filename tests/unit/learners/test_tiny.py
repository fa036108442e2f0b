import hashlib

import pytest
import torch

from coterie.config.schema import DataConfig
from coterie.core.types import Example
from coterie.data.chat import encode_conversation, encode_prompt
from coterie.errors import ModelError
from coterie.learners.models import load_model, load_tokenizer
from coterie.learners.tiny import build_tiny, tiny_tokenizer

SMALL = {"hidden": 16, "layers": 1, "heads": 2}


def digests(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_the_bytes_depend_on_the_seed_alone(tmp_path):
    torch.manual_seed(1)
    first = digests(build_tiny(tmp_path / "a", seed=3, **SMALL))
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    again = digests(build_tiny(tmp_path / "b", seed=3, **SMALL))
    assert torch.equal(torch.random.get_rng_state(), before)
    other = digests(build_tiny(tmp_path / "c", seed=4, **SMALL))
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


def test_it_loads_like_any_model(tmp_path):
    folder = str(build_tiny(tmp_path / "a", kv_heads=1, context=64, **SMALL))
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert model.config.model_type == "qwen3"
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 64
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id != tokenizer.pad_token_id
    assert len(tokenizer) == model.config.vocab_size
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, len(tokenizer))


def test_one_token_a_character_and_word():
    tokenizer = tiny_tokenizer("abc 12\n", words=("#### ", " = "))
    text = "  a = 1\n#### 2"
    tokens = tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert [tokenizer.decode([token]) for token in tokens] == [" ", " ", "a", " = ", "1", "\n", "#### ", "2"]
    assert tokenizer("x")["input_ids"] == [tokenizer.unk_token_id]


def test_the_template_teaches_answers_with_their_end():
    tokenizer = tiny_tokenizer()
    chat = ({"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"})
    tokens, index = encode_conversation(tokenizer, chat, DataConfig())
    assert tokenizer.decode(tokens[index]) == "2<|im_end|>"
    prompt = encode_prompt(tokenizer, Example("e", chat[:1]), DataConfig())
    assert tokenizer.decode(prompt) == "<|user|>1+1=<|im_end|><|assistant|>"
    assert len(prompt) == 7


@pytest.mark.parametrize("sizes", [{"hidden": 18, "heads": 4}, {"heads": 4, "kv_heads": 3}, {"heads": 0}])
def test_sizes_must_divide(tmp_path, sizes):
    with pytest.raises(ModelError, match="must be a multiple"):
        build_tiny(tmp_path / "a", **sizes)
    assert not (tmp_path / "a").exists()


def test_characters_are_needed():
    with pytest.raises(ModelError, match="at least one character"):
        tiny_tokenizer("")

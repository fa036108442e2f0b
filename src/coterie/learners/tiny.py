"""A tiny Qwen3-architecture model with a character tokenizer, made on the spot: quickstart, tests, demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from coterie.core.keys import seed_of
from coterie.errors import ModelError
from coterie.learners.models import quiet_progress

ARITHMETIC = "0123456789+-*/=() .,:;#?\n"
"""Characters of short arithmetic with worked solutions."""

PRINTABLE = "".join(chr(code) for code in range(32, 127)) + "\n\t"
"""Printable ASCII."""

PAD, END, UNKNOWN = "<|pad|>", "<|im_end|>", "<|unk|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('unknown role ' + message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '|>' -}}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] + '<|im_end|>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
"""ChatML with one token a role: `<|user|>2+2=<|im_end|><|assistant|>4<|im_end|>`; the assistant's part is marked."""


def tiny_tokenizer(
    characters: str = ARITHMETIC, *, words: Sequence[str] = (), context: int = 512
) -> PreTrainedTokenizerFast:
    """One token a character, word and role; distinct padding, end and unknown tokens; no beginning token.

    Raises:
        ModelError: when `characters` is empty.
    """
    letters = sorted(set(characters))
    if not letters:
        raise ModelError("a tokenizer needs at least one character")
    specials = [PAD, END, UNKNOWN, *ROLES]
    vocabulary = {token: number for number, token in enumerate([*specials, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    # An empty pattern splits at every character; Fuse joins them again without blanks.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        extra_special_tokens=list(ROLES),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def build_tiny(
    folder: str | Path,
    *,
    characters: str = ARITHMETIC,
    words: Sequence[str] = (),
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int | None = None,
    intermediate: int | None = None,
    context: int = 512,
    seed: int = 0,
) -> Path:
    """Write a random Qwen3-architecture model and its tokenizer as a plain Hugging Face folder.

    The bytes are a function of the arguments and the library versions. The caller's random state is left alone.

    Args:
        folder: where to write; made when missing.
        characters: every character the tokenizer knows (a corpus will do: duplicates are dropped).
        words: longer strings that are one token each.
        hidden: width; a multiple of `2 * heads`.
        layers: transformer blocks.
        heads: attention heads.
        kv_heads: key-value heads; None takes `heads`. Must divide `heads`.
        intermediate: width of the feed-forward part; None takes `3 * hidden`.
        context: longest sequence in tokens.
        seed: of the weights.

    Returns:
        The folder.

    Raises:
        ModelError: for sizes that don't divide.
    """
    kv = heads if kv_heads is None else kv_heads
    if heads < 1 or hidden % (2 * heads) or kv < 1 or heads % kv:
        raise ModelError(
            f"hidden={hidden}, heads={heads}, kv_heads={kv}: hidden must be a multiple of 2 * heads, and kv_heads "
            "must divide heads"
        )
    tokenizer = tiny_tokenizer(characters, words=words, context=context)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden if intermediate is None else intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=hidden // heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("tiny", seed))
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    with quiet_progress():
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    return out

"""Tokenizers and chat templates of the kinds that models come with."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_MARKED = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' -}}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] + '<|im_end|>' -}}{%- endif -%}"
    "{{- '\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
CHATML_MARKED_WITHOUT_END = CHATML_MARKED.replace(
    "{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}",
    "{{- message['content'] -}}{%- endgeneration -%}{{- '<|im_end|>' -}}",
)
LLAMA3 = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '<|end_header|>\n\n' + message['content'] | trim + '<|im_end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant<|end_header|>\n\n' -}}{%- endif -%}"
)
QWEN3 = (
    "{%- for message in messages -%}"
    "{%- set content = message['content'] -%}"
    "{%- if message['role'] == 'assistant' and not loop.last and '</think>' in content -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') -%}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>' + '\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}"
    "{%- endif -%}"
)
REORDERING = (
    "{% for message in messages | sort(attribute='role') %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERING = CHATML.replace("message['content']", "message['content'] | upper")
PLAIN = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
ALTERNATING = (
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ message['content'] }}{% endfor %}"
)


def byte_tokenizer(template: str | None = None, *, add_bos: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte, one for two line breaks, and ChatML's special tokens; optionally with a beginning token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|bos|>", "<|im_start|>", "<|im_end|>", "<|end_header|>", "<|pad|>"]
    vocabulary = {token: number for number, token in enumerate([*specials, *alphabet, "ĊĊ"])}
    backend = Tokenizer(models.BPE(vocabulary, merges=[("Ċ", "Ċ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A <|im_end|>", special_tokens=[("<|bos|>", 0), ("<|im_end|>", 2)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|bos|>", eos_token="<|im_end|>", pad_token="<|pad|>"
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture
def templates() -> dict[str, str]:
    return {name.lower(): value for name, value in globals().items() if name.isupper()}


@pytest.fixture
def make_tokenizer():
    return byte_tokenizer

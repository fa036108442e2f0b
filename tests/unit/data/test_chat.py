import numpy as np
import pytest

from coterie.config.schema import DataConfig
from coterie.core.batch import Batch
from coterie.core.types import Example
from coterie.data.chat import conversation_group, encode_conversation, encode_prompt
from coterie.data.sources import Conversation
from coterie.errors import DataError, ModelError

CONFIG = DataConfig()
CHAT = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "Écris é:"},
    {"role": "assistant", "content": "é, 🙂"},
)


def taught(tokenizer, messages, config=CONFIG):
    """The runs of consecutive action tokens as text, special tokens included."""
    tokens, index = encode_conversation(tokenizer, messages, config)
    assert tokens.dtype == index.dtype == np.int64
    cuts = np.flatnonzero(np.diff(index) > 1) + 1
    return [tokenizer.decode(tokens[run]) for run in np.split(index, cuts)]


def prompt_tokens(tokenizer, messages, config=CONFIG):
    return encode_prompt(tokenizer, Example("e", tuple(messages)), config)


@pytest.mark.parametrize("name", ["chatml", "chatml_marked", "chatml_marked_without_end", "llama3", "qwen3"])
def test_assistant_messages_and_their_ends_are_taught(make_tokenizer, templates, name):
    tokenizer = make_tokenizer(templates[name])
    assert taught(tokenizer, CHAT) == ["2<|im_end|>", "é, 🙂<|im_end|>"]


@pytest.mark.parametrize("name", ["chatml", "chatml_marked", "llama3", "qwen3", "plain"])
def test_the_taught_answer_follows_the_prompt_that_sampling_uses(make_tokenizer, templates, name):
    tokenizer = make_tokenizer(templates[name])
    tokens, index = encode_conversation(tokenizer, CHAT[:3], CONFIG)
    prompt = prompt_tokens(tokenizer, CHAT[:2])
    assert tuple(tokens[: index[0]]) == prompt
    assert np.array_equal(index, np.arange(index[0], index[0] + len(index)))


def test_llama_template_gives_one_beginning_token(make_tokenizer, templates):
    for add_bos in (False, True):
        tokenizer = make_tokenizer(templates["llama3"], add_bos=add_bos)
        for tokens in (prompt_tokens(tokenizer, CHAT[:2]), encode_conversation(tokenizer, CHAT, CONFIG)[0]):
            assert list(tokens).count(tokenizer.bos_token_id) == 1
            assert tokens[0] == tokenizer.bos_token_id


def test_a_doubled_beginning_token_is_made_one(make_tokenizer, templates):
    tokenizer = make_tokenizer("{{ bos_token }}" + templates["llama3"])
    plain = make_tokenizer(templates["llama3"])
    assert prompt_tokens(tokenizer, CHAT[:2]) == prompt_tokens(plain, CHAT[:2])
    doubled, once = encode_conversation(tokenizer, CHAT, CONFIG), encode_conversation(plain, CHAT, CONFIG)
    assert np.array_equal(doubled[0], once[0])
    assert np.array_equal(doubled[1], once[1])


def test_raw_prompts_need_no_template(make_tokenizer):
    config = DataConfig(chat=False)
    example = Example("e", ({"role": "raw", "content": "2+2="},))
    assert make_tokenizer().decode(encode_prompt(make_tokenizer(), example, config)) == "2+2="
    with_ends = make_tokenizer(add_bos=True)
    assert with_ends.decode(encode_prompt(with_ends, example, config)) == "<|bos|>2+2="
    chat = ({"role": "raw", "content": "2+2="}, {"role": "assistant", "content": "4"})
    assert taught(with_ends, chat, config) == ["4<|im_end|>"]
    tokens, _ = encode_conversation(with_ends, chat, config)
    assert with_ends.decode(tokens) == "<|bos|>2+2=4<|im_end|>"


def test_no_template_is_an_error_with_a_remedy(make_tokenizer):
    tokenizer = make_tokenizer()
    for call in (lambda: prompt_tokens(tokenizer, CHAT[:2]), lambda: encode_conversation(tokenizer, CHAT, CONFIG)):
        with pytest.raises(ModelError, match=r"no chat template.*data\.chat=false"):
            call()


def test_several_templates_without_a_default_are_an_error(make_tokenizer, templates):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = {"rag": templates["chatml"], "tool_use": templates["chatml"]}
    with pytest.raises(ModelError, match="no default chat template"):
        prompt_tokens(tokenizer, CHAT[:2])


def test_a_template_that_never_ends_a_turn_gets_an_end_of_sequence(make_tokenizer, templates):
    tokenizer = make_tokenizer(templates["plain"])
    assert taught(tokenizer, CHAT[1:3])[-1] == "2\n<|im_end|>"


def test_earlier_thinking_that_the_template_drops_is_refused(make_tokenizer, templates):
    tokenizer = make_tokenizer(templates["qwen3"])
    thinking = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"})
    assert taught(tokenizer, thinking) == ["<think>\nhm\n</think>\n\nb<|im_end|>"]
    both = (*thinking, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"})
    with pytest.raises(DataError, match=r"message 1 is written differently.*weight: 0"):
        encode_conversation(tokenizer, both, CONFIG)
    untrained = (both[0], {**both[1], "weight": 0}, *both[2:])
    assert taught(tokenizer, untrained) == ["d<|im_end|>"]


def test_template_variables_reach_the_template(make_tokenizer, templates):
    tokenizer = make_tokenizer(templates["qwen3"])
    config = DataConfig(chat_template_kwargs={"enable_thinking": False})
    assert tokenizer.decode(prompt_tokens(tokenizer, CHAT[1:2], config)).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(DataError, match="prompt of message"):
        encode_conversation(tokenizer, CHAT[1:3], config)


@pytest.mark.parametrize(("name", "message"), [("reordering", "written differently"), ("altering", "does not write")])
def test_templates_that_reorder_or_alter_are_refused(make_tokenizer, templates, name, message):
    chat = ({"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"})
    tokenizer = make_tokenizer(templates[name])
    with pytest.raises(DataError, match=message):
        encode_conversation(tokenizer, chat, CONFIG)


def test_a_marked_template_that_alters_is_refused(make_tokenizer, templates):
    tokenizer = make_tokenizer(templates["chatml_marked"].replace("message['content']", "message['content'][:3]"))
    with pytest.raises(DataError, match="message 1"):
        encode_conversation(tokenizer, (CHAT[1], {"role": "assistant", "content": "thousands"}), CONFIG)


def test_a_template_that_marks_the_wrong_number_of_blocks_is_refused(make_tokenizer, templates):
    template = templates["chatml_marked"].replace("== 'assistant'", "!= 'system'")
    with pytest.raises(ModelError, match="3 generation blocks for 1"):
        encode_conversation(make_tokenizer(template), (CHAT[1], *CHAT[1:3]), CONFIG)


def test_a_template_that_raises_names_the_chat(make_tokenizer, templates):
    tokenizer = make_tokenizer(templates["alternating"])
    with pytest.raises(DataError, match=r"example 'e'.*roles must alternate"):
        prompt_tokens(tokenizer, [CHAT[1], CHAT[1]])
    conversation = Conversation("row-7", (CHAT[1], CHAT[1], CHAT[2]))
    with pytest.raises(DataError, match=r"conversation 'row-7'.*roles must alternate"):
        conversation_group(conversation, tokenizer, CONFIG)


def test_a_token_over_the_boundary_is_split_as_sampling_meets_it(make_tokenizer, templates):
    """A line break at the start of the answer would merge with the one that ends the generation prompt."""
    chat = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "\nb"})
    for name in ("chatml", "chatml_marked"):
        tokenizer = make_tokenizer(templates[name])
        assert taught(tokenizer, chat) == ["\nb<|im_end|>"]
        tokens, index = encode_conversation(tokenizer, chat, CONFIG)
        assert tuple(tokens[: index[0]]) == prompt_tokens(tokenizer, chat[:1])


def test_weight_zero_everywhere_leaves_nothing(make_tokenizer, templates):
    chat = (CHAT[1], {**CHAT[2], "weight": 0})
    with pytest.raises(DataError, match="no assistant message to imitate"):
        encode_conversation(make_tokenizer(templates["chatml"]), chat, CONFIG)


def test_a_chat_that_starts_with_the_assistant_is_refused_without_marks(make_tokenizer, templates):
    with pytest.raises(DataError, match="message 0"):
        encode_conversation(make_tokenizer(templates["chatml"]), (CHAT[2], CHAT[1], CHAT[2]), CONFIG)


def test_conversation_groups_make_a_batch(make_tokenizer, templates):
    tokenizer = make_tokenizer(templates["chatml"])
    groups = [conversation_group(Conversation(str(n), CHAT[: 3 + 2 * n]), tokenizer, CONFIG) for n in range(2)]
    batch = Batch.from_groups(groups)
    assert batch.counts.sequences == 2
    assert batch.counts.action_tokens == sum(g.rollouts[0].num_actions for g in groups)
    text = tokenizer.decode(batch.tokens[batch.action_index].tolist())
    assert text == "2<|im_end|>" + "2<|im_end|>" + "é, 🙂<|im_end|>"

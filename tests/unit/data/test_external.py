import json
import sys
import types

import pytest

from coterie.config.schema import DataConfig
from coterie.data import external
from coterie.data.sources import load_conversations, load_examples
from coterie.errors import ConfigError, DataError

pytest.importorskip("reasoning_gym")


def gym(task, seed=0, **keys):
    return load_examples(DataConfig(path=f"gym:{task}", **keys), seed=seed, need_reference=True)


def test_problems_carry_what_their_verifier_needs():
    import reasoning_gym

    examples = gym("chain_sum", size=5, options={"min_terms": 3, "max_terms": 3})
    assert len({e.id for e in examples}) == 5
    for example in examples:
        task, entry = example.meta["gym"]["task"], json.loads(json.dumps(example.meta["gym"]["entry"]))
        assert example.source == task == "chain_sum"
        assert example.meta["num_terms"] == 3
        scorer = reasoning_gym.get_score_answer_fn(task)
        assert scorer(example.reference, entry) == 1.0
        assert scorer("nonsense", entry) < 0.1


def test_the_same_seed_gives_the_same_problems_and_others_share_none():
    def texts(seed, **keys):
        return [e.prompt[0]["content"] for e in gym("chain_sum", seed=seed, size=100, **keys)]

    long = {"options": {"min_terms": 6, "min_digits": 4}}
    assert texts(0, **long) == texts(0, **long)
    assert not set(texts(0, **long)) & set(texts(1, **long))


def test_a_literal_seed_of_the_task():
    assert gym("chain_sum", seed=9, size=1, options={"seed": 4})[0].id == "chain_sum-4-0"


def test_data_seed_replaces_the_run_seed():
    config = DataConfig(path="gym:gcd", size=2, seed=7)
    assert load_examples(config, seed=1) == load_examples(config, seed=2)


def test_templates_may_name_the_metadata():
    (example,) = gym("chain_sum", size=1, template="{expression} = ")
    assert example.prompt[0]["content"] == example.meta["expression"] + " = "


def test_max_examples_bounds_the_number_made():
    assert len(gym("chain_sum", size=50, max_examples=3)) == 3


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("chain_sums", {}, r"no task 'chain_sums'; nearest: chain_sum"),
        ("chain_sum", {"min_term": 2}, r"data\.options\.min_term: .*did you mean 'min_terms'"),
        ("chain_sum", {"size": 2}, r"set data\.size"),
        ("chain_sum", {"min_terms": 9}, r"refused: max_terms must be >= min_terms"),
        ("chain_sum", {"min_terms": "x"}, "refused"),
    ],
)
def test_bad_tasks_and_options(task, options, message):
    with pytest.raises(ConfigError, match=message):
        gym(task, size=2, options=options)


def test_worked_solutions_are_the_conversations_of_a_task():
    config = DataConfig(path="gym:chain_sum", size=4, template="{expression} = ")
    for conversation in load_conversations(config, seed=0):
        prompt, answer = (message["content"] for message in conversation.messages)
        terms = prompt.rstrip(" =").replace("- ", "-").replace("+ ", "+").split()
        assert answer.endswith(f"#### {sum(int(term) for term in terms)}")
    with pytest.raises(ConfigError, match="no worked solutions for gym:gcd"):
        load_conversations(DataConfig(path="gym:gcd", size=1), seed=0)


@pytest.mark.parametrize(("package", "path"), [("reasoning_gym", "gym:gcd"), ("datasets", "hub:a/b")])
def test_missing_packages_name_the_remedy(monkeypatch, package, path):
    find = external.importlib.util.find_spec
    monkeypatch.setattr(external.importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(DataError, match=r"pip install 'coterie\["):
        load_examples(DataConfig(path=path), seed=0)


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the `datasets` package: what it was asked, and what it answers."""
    module = types.ModuleType("datasets")
    module.__spec__ = types.SimpleNamespace(name="datasets")
    module.calls = []

    def load_dataset(*args, **kwargs):
        module.calls.append((args, kwargs))
        if isinstance(module.answer, Exception):
            raise module.answer
        return module.answer

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_hub_rows(hub):
    hub.answer = [{"question": "a", "answer": "b"}]
    config = DataConfig(path="hub:openai/gsm8k:main", split="test", prompt_key="question", reference_key="answer")
    (example,) = load_examples(config, seed=0)
    assert hub.calls == [(("openai/gsm8k", "main"), {"split": "test"})]
    assert (example.id, example.reference) == ("openai/gsm8k-0", "b")


@pytest.mark.parametrize(
    "error", [ConnectionError("no route"), ValueError('Unknown split "x"'), FileNotFoundError("no")]
)
def test_hub_errors(hub, error):
    hub.answer = error
    with pytest.raises(DataError, match=rf"hub:a/b, data\.split=train.*{error}.*connection"):
        load_examples(DataConfig(path="hub:a/b"), seed=0)

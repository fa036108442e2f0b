import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from coterie.config.compose import compose
from coterie.learners.tiny import build_tiny
from coterie.train.metrics_file import strip_wall
from coterie.train.reward_model import run_rm


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("rm") / "tiny", hidden=32, layers=2, heads=2, context=64)


@pytest.fixture
def data(tmp_path):
    rows = [
        {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": "0" * (1 + b), "gap": 1 + b}
        for a in range(1, 6)
        for b in range(4)
    ]
    for name, lines in (("pairs", rows[:14]), ("held_out", rows[14:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return tmp_path


def overrides(model, data, name, *more):
    return [
        f"model={model}",
        f"data.path={data / 'pairs.jsonl'}",
        f"eval.data.path={data / 'held_out.jsonl'}",
        "eval.every=2",
        f"run.dir={data / name}",
        "rm.batch_size=5",
        "train.steps=4",
        "optim.lr=1e-3",
        "log.console=off",
        *more,
    ]


def records(folder):
    return [strip_wall(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def folder_of(run, step=4):
    return run / "checkpoints" / f"step_{step:06d}" / "model"


def test_a_resumed_run_is_the_uninterrupted_one(model, data):
    more = ["data.margin_key=gap", "loss.margin=0.5", "loss.centre_coef=0.01"]
    run_rm(compose("rm", overrides(model, data, "whole", *more)))
    run_rm(compose("rm", [*overrides(model, data, "cut", *more), "train.steps=2"]))
    run_rm(compose("rm", [*overrides(model, data, "cut", *more), "run.resume=must"]))
    assert records(data / "cut") == records(data / "whole")
    whole, cut = (load_file(folder_of(data / name) / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_the_folder_scores_chats_as_the_evaluation_did(model, data):
    result = run_rm(compose("rm", overrides(model, data, "run")))
    scorer = AutoModelForSequenceClassification.from_pretrained(folder_of(data / "run"))
    tokenizer = AutoTokenizer.from_pretrained(folder_of(data / "run"))
    margins = []
    for line in (data / "held_out.jsonl").read_text().splitlines():
        row = json.loads(line)
        chats = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row[key]}], tokenize=False
            )
            for key in ("chosen", "rejected")
        ]
        found = tokenizer(chats, add_special_tokens=False, padding=True, return_tensors="pt")
        with torch.no_grad():
            scores = scorer(input_ids=found["input_ids"], attention_mask=found["attention_mask"]).logits[:, 0]
        margins.append(float(scores[0] - scores[1]))
    last = records(data / "run")[-1]
    assert last["eval/margin"] == pytest.approx(sum(margins) / len(margins), abs=1e-5)
    assert last["eval/accuracy"] == sum(m > 0 for m in margins) / len(margins) == result["eval_after"]


def test_a_reward_model_can_be_trained_on(model, data):
    run_rm(compose("rm", overrides(model, data, "first")))
    run_rm(compose("rm", overrides(folder_of(data / "first"), data, "second")))
    first, second = records(data / "first"), records(data / "second")
    assert second[0]["eval/margin"] == pytest.approx(first[-1]["eval/margin"], abs=1e-5)


def test_a_tokenizer_without_padding_pads_with_its_end(model, data, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = None
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in model.iterdir():
        (bare / file.name).write_bytes(file.read_bytes())
    tokenizer.save_pretrained(bare)
    run_rm(compose("rm", overrides(bare, data, "run")))
    saved = folder_of(data / "run")
    end = AutoTokenizer.from_pretrained(saved).eos_token_id
    assert AutoModelForSequenceClassification.from_pretrained(saved).config.pad_token_id == end
    assert AutoTokenizer.from_pretrained(saved).pad_token_id == end


def test_metrics_are_of_scores(model, data):
    run_rm(compose("rm", overrides(model, data, "run")))
    found = records(data / "run")
    assert [r["step"] for r in found] == [0, 1, 2, 3, 4]
    assert {"reward_model/loss", "reward_model/accuracy", "reward_model/margin"} <= found[1].keys()
    assert "policy/loss" not in found[1]


@pytest.mark.parametrize("more", [["learner.dtype=bfloat16"], ["learner.gradient_checkpointing=true"]])
def test_other_learner_settings(model, data, more):
    run_rm(compose("rm", overrides(model, data, "run", *more)))
    losses = [r["reward_model/loss"] for r in records(data / "run") if "reward_model/loss" in r]
    assert losses[-1] < losses[0]

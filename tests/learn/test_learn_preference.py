"""Preference training and reward models learn a rule that holds on held-out rows: seconds each."""

import json

import numpy as np
import pytest
import torch

from coterie.config.compose import compose
from coterie.learners.tiny import build_tiny
from coterie.train.preference import run_dpo
from coterie.train.reward_model import run_rm


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("learn") / "tiny", hidden=32, layers=2, heads=2, context=64)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def data(tmp_path):
    """The chosen answer has more sevens than threes, the rejected one fewer; held-out prompts are new."""
    dice = np.random.default_rng(0)
    rows = []
    for number in range(220):
        answers = ["".join(dice.permutation(list(a))) for a in ("777310", "733310")]
        rows.append({"prompt": f"{number}=", "chosen": answers[0], "rejected": answers[1]})
    labelled = [{"prompt": r["prompt"], "response": r[k], "label": k == "chosen"} for r in rows for k in list(r)[1:]]
    files = {"train": rows[:160], "held_out": rows[160:], "labels": labelled[:320], "labels_out": labelled[320:]}
    for name, lines in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return tmp_path


def curve(folder, name):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [r[name] for r in records if name in r]


def settings(model, data, seed, train, held_out, *more):
    return [
        f"model={model}",
        f"data.path={data / train}.jsonl",
        f"eval.data.path={data / held_out}.jsonl",
        "eval.every=40",
        "train.steps=40",
        "train.save_every=0",
        f"run.seed={seed}",
        f"run.dir={data / 'run'}",
        "log.console=off",
        *more,
    ]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("loss", ["dpo", "ipo", "orpo", "simpo"])
def test_pairwise_losses_raise_margin_and_accuracy(model, data, seed, loss):
    run_dpo(
        compose(
            "dpo",
            settings(model, data, seed, "train", "held_out", f"loss={loss}", "dpo.batch_size=32", "optim.lr=3e-3"),
        )
    )
    margins, accuracy = (curve(data / "run", f"eval/{name}") for name in ("margin", "accuracy"))
    low = curve(data / "run", "eval/margin_ci95_low")
    assert abs(accuracy[0] - 0.5) < 0.25
    assert accuracy[-1] > 0.9, accuracy
    assert low[-1] > margins[0] and low[-1] > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_kto_tells_desirable_answers(model, data, seed):
    more = ["loss=kto", "dpo.batch_size=32", "optim.lr=3e-3"]
    run_dpo(compose("dpo", settings(model, data, seed, "labels", "labels_out", *more)))
    assert curve(data / "run", "eval/accuracy")[-1] > 0.8


@pytest.mark.parametrize("seed", [0, 1])
def test_a_reward_model_ranks_held_out_pairs(model, data, seed):
    more = ["rm.batch_size=32", "optim.lr=3e-3"]
    run_rm(compose("rm", settings(model, data, seed, "train", "held_out", *more)))
    assert curve(data / "run", "eval/accuracy")[-1] > 0.8
    assert curve(data / "run", "eval/margin_ci95_low")[-1] > 0

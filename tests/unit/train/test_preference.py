import asyncio
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coterie.config.compose import compose
from coterie.errors import DataError, RunDirectoryError
from coterie.learners.tiny import build_tiny
from coterie.train import preference
from coterie.train.metrics_file import strip_wall
from coterie.train.preference import build, evaluate_preferences, run_dpo
from coterie.train.session import STOPPED, Session

LOSSES = ["dpo", "robust_dpo", "hinge", "ipo", "ipo@openrlhf", "exo", "discopop", "nca", "bco", "sppo", "apo_zero"]
LOSSES += ["apo_down", "aot", "aot_unpaired", "orpo", "cpo", "simpo", "alphapo"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("dpo") / "tiny", hidden=32, layers=2, heads=2, context=64)


@pytest.fixture
def data(tmp_path):
    rows = [
        {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": "0" * (1 + b)} for a in range(1, 6) for b in range(4)
    ]
    labelled = [{"prompt": r["prompt"], "response": r[k], "label": k == "chosen"} for r in rows for k in list(r)[1:]]
    for name, lines in (("pairs", rows[:14]), ("held_out", rows[14:]), ("labels", labelled)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return tmp_path


def overrides(model, data, name="run", path="pairs", *more):
    return [
        f"model={model}",
        f"data.path={data / path}.jsonl",
        f"run.dir={data / name}",
        "dpo.batch_size=5",
        "train.steps=4",
        "optim.lr=1e-3",
        "log.console=off",
        *more,
    ]


def records(folder):
    return [strip_wall(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder, step):
    return load_file(folder / "checkpoints" / f"step_{step:06d}" / "model" / "model.safetensors")


@pytest.mark.parametrize("loss", LOSSES)
def test_every_pairwise_loss_trains_and_is_evaluated(model, data, loss):
    held_out = [f"eval.data.path={data / 'held_out.jsonl'}", "eval.every=2"]
    result = run_dpo(compose("dpo", overrides(model, data, "run", "pairs", f"loss={loss}", *held_out)))
    found = records(data / "run")
    assert [r["step"] for r in found] == [0, 1, 2, 3, 4]
    for record in (found[0], found[2], found[4]):
        low, value, high = (record[f"eval/margin{end}"] for end in ("_ci95_low", "", "_ci95_high"))
        assert low <= value <= high and record["eval/problems"] == 6
        assert (
            0 <= record["eval/accuracy_ci95_low"] <= record["eval/accuracy"] <= record["eval/accuracy_ci95_high"] <= 1
        )
    assert {"preference/margin", "preference/accuracy", "preference/loss"} <= found[1].keys()
    assert result["eval_after"] == found[4]["eval/accuracy"] and list(result["evaluations"]) == ["0", "2", "4"]
    assert (data / "run" / "reference").exists() == (loss not in ("orpo", "cpo", "simpo", "alphapo"))


@pytest.mark.parametrize("point", ["kl", "zero"])
def test_kto_takes_labelled_answers(model, data, point):
    more = ["loss=kto", f"loss.reference_point={point}", "eval.every=4", f"eval.data.path={data / 'labels.jsonl'}"]
    run_dpo(compose("dpo", overrides(model, data, "run", "labels", *more)))
    found = records(data / "run")
    assert 0 <= found[-1]["eval/accuracy"] <= 1 and found[-1]["eval/problems"] == 40
    assert ("preference/reference_point" in found[1]) and found[1]["preference/loss"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("more", [[], ["loss=kto"], ["dpo.reference=each_step"]], ids=["dpo", "kto", "each_step"])
def test_a_resumed_run_is_the_uninterrupted_one(model, data, more):
    path = "labels" if "loss=kto" in more else "pairs"
    run_dpo(compose("dpo", overrides(model, data, "whole", path, *more)))
    run_dpo(compose("dpo", [*overrides(model, data, "cut", path, *more), "train.steps=2"]))
    run_dpo(compose("dpo", [*overrides(model, data, "cut", path, *more), "run.resume=must"]))
    assert records(data / "cut") == records(data / "whole")
    whole, cut = weights(data / "whole", 4), weights(data / "cut", 4)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_the_reference_stays_what_it_was_when_its_file_is_lost(model, data):
    run_dpo(compose("dpo", overrides(model, data, "whole")))
    run_dpo(compose("dpo", [*overrides(model, data, "cut"), "train.steps=2"]))
    shutil.rmtree(data / "cut" / "reference")
    run_dpo(compose("dpo", [*overrides(model, data, "cut"), "run.resume=must"]))
    assert records(data / "cut") == records(data / "whole")
    [one], [other] = ([*(data / name / "reference").iterdir()] for name in ("cut", "whole"))
    assert one.name == other.name and one.read_bytes() == other.read_bytes()


def test_once_and_each_step_are_the_same_reference(model, data):
    other = build_tiny(data / "other", hidden=32, layers=2, heads=2, context=64, seed=5)
    curves = []
    for number, how in enumerate(("once", "each_step")):
        more = [f"dpo.reference={how}", f"learner.ref_model={other}"]
        run_dpo(compose("dpo", overrides(model, data, f"run{number}", "pairs", *more)))
        curves.append([r["preference/margin"] for r in records(data / f"run{number}")])
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
    assert abs(curves[0][0]) > 1e-4, "against itself the margin would be 0"


def test_margins_do_not_depend_on_micro_batches(model, data):
    curves = []
    for number, tokens in enumerate((0, 1, 40)):
        more = [f"learner.micro_batch_tokens={tokens}", f"learner.share_prefix={str(tokens == 40).lower()}"]
        run_dpo(compose("dpo", overrides(model, data, f"run{number}", "pairs", *more)))
        curves.append([r["preference/margin"] for r in records(data / f"run{number}")])
    assert curves[1] == pytest.approx(curves[0], abs=1e-4)
    assert curves[2] == pytest.approx(curves[0], abs=1e-4)


def test_held_out_margins_are_those_of_the_definition(model, data):
    held_out = [f"eval.data.path={data / 'held_out.jsonl'}", "eval.every=2", "loss.beta=0.5"]
    run = compose("dpo", overrides(model, data, "run", "pairs", "loss=cpo", *held_out)).run
    parts, _, _ = build(run, threads=1)
    found = asyncio.run(evaluate_preferences(parts.learner, run.loss, parts.held_out.groups, seed=0))
    margins = []
    for group in parts.held_out.groups:
        sums = []
        for r in group.rollouts:
            with torch.no_grad():
                logits = parts.learner.module(input_ids=torch.tensor(r.tokens)[None]).logits[0].log_softmax(1)
            sums.append(float(logits[r.action_index - 1, r.tokens[r.action_index]].sum()))
        margins.append(0.5 * (sums[0] - sums[1]))
    assert found["eval/margin"] == pytest.approx(np.mean(margins), abs=1e-4)
    assert found["eval/accuracy"] == pytest.approx(np.mean(np.array(margins) > 0))


def test_long_and_equal_pairs_are_left_out_and_said(model, data):
    rows = [{"prompt": "1+1=", "chosen": "2", "rejected": r} for r in ("3", "2", "3" * 50)]
    (data / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts, _, _ = build(compose("dpo", overrides(model, data, "run", "odd", "dpo.max_tokens=20")).run, threads=1)
    assert [e.id for e in parts.rows.kept] == ["odd-0"]
    assert parts.rows.notes == (
        "1 of 3 rows left out: longer than dpo.max_tokens",
        "1 of 3 rows left out: with equal answers",
    )
    with pytest.raises(DataError, match="none of the 3 rows"):
        build(compose("dpo", overrides(model, data, "run", "odd", "dpo.max_tokens=3")).run, threads=1)


def test_kto_needs_two_prompts(model, data):
    (data / "same.jsonl").write_text('{"prompt": "1", "response": "2", "label": 1}\n' * 3)
    with pytest.raises(DataError, match="loss.reference_point=zero"):
        build(compose("dpo", overrides(model, data, "run", "same", "loss=kto")).run, threads=1)


def test_epochs_and_changed_data(model, data):
    more = ["dpo.epochs=1.5", "dpo.batch_size=7"]
    assert build(compose("dpo", overrides(model, data)[:4] + more).run, threads=1)[0].steps == 3
    run_dpo(compose("dpo", overrides(model, data)))
    path = data / "pairs.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises((DataError, RunDirectoryError), match="data changed"):
        run_dpo(compose("dpo", [*overrides(model, data), "train.steps=6", "run.resume=must"]))


def test_a_stop_request_before_the_first_step_leaves_a_run_that_can_go_on(model, data, monkeypatch):
    def stopped(resolved, directory, *, total_steps):
        session = Session(resolved, directory, total_steps=total_steps)
        session.stopping = True
        return session

    with monkeypatch.context() as patch:
        patch.setattr(preference, "Session", stopped)
        result = run_dpo(compose("dpo", overrides(model, data)))
    assert result["steps"] == 0 and result["ended"] == STOPPED
    assert run_dpo(compose("dpo", [*overrides(model, data), "run.resume=auto"]))["steps"] == 4
    run_dpo(compose("dpo", overrides(model, data, "whole")))
    assert records(data / "run") == records(data / "whole")


@pytest.mark.parametrize("more", [["learner.dtype=bfloat16"], ["learner.gradient_checkpointing=true"]])
def test_other_learner_settings(model, data, more):
    run_dpo(compose("dpo", overrides(model, data, "run", "pairs", *more)))
    found = records(data / "run")
    assert found[0]["preference/margin"] == pytest.approx(0, abs=5e-3) and found[-1]["preference/margin"] > 0

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from coterie.config.compose import MAY_CHANGE, compose, load_resolved
from coterie.config.overrides import presets
from coterie.config.primary import PRIMARIES
from coterie.errors import ConfigError


def test_defaults_and_overrides(base):
    found = compose("train", [*base, "optim.lr=3", "rollout.stop=['a b',c]"])
    assert (found.run.optim.lr, found.run.rollout.stop, found.run.train.steps) == (3.0, ("a b", "c"), 100)
    assert type(found.run.advantage).__name__ == "GRPO"
    assert found.run.kl_control is None
    assert found.verb == "train"


def test_the_record_reads_back_equal(base, pieces, tmp_path):
    found = compose(
        "train",
        [
            *base,
            f"filters=[missing,{pieces}:keep,constant]",
            "filters.keep.count=1",
            "advantage=grpo@trl",
            "entropy_control=skywork",
            "data.system='a: \"b\" #c \\${d}'",
            "model_kwargs.x={y: [1, 2.5, null, true]}",
            "optim.lr=1e-9",
        ],
    )
    path = tmp_path / "config.yaml"
    path.write_text(found.yaml)
    again = load_resolved(path)
    assert again.run == found.run
    assert list(again.run.filters) == ["missing", "keep", "constant"]
    assert (again.yaml, again.fingerprint, again.verb) == (found.yaml, found.fingerprint, "train")
    assert set(again.origins) == set(found.origins)


@pytest.mark.parametrize(
    ("verb", "overrides"),
    [("sft", ["model=m", "data.path=d"]), ("generate", ["model=m", "data.path=d", "out=o.jsonl", "rollout.n=3"])],
)
def test_the_other_verbs_read_back_too(verb, overrides, tmp_path):
    found = compose(verb, overrides)
    (tmp_path / "config.yaml").write_text(found.yaml)
    assert load_resolved(tmp_path / "config.yaml").run == found.run
    assert isinstance(found.run, PRIMARIES[verb].cls)


def test_a_record_keeps_settings_that_were_switched_off(base, preset, tmp_path):
    chosen = preset("eval: {every: 10, n: 4, temperature: 0.5, data: {path: held_out.jsonl}}\n")
    found = compose("train", [*base, chosen, "eval.every=0"])
    (tmp_path / "config.yaml").write_text(found.yaml)
    assert load_resolved(tmp_path / "config.yaml").run == found.run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is damaged"),
        ("- 1", "no resolved configuration"),
        ("verb: dance", "no resolved configuration"),
        ("verb: sft\nmodel: m\nrun: {dirr: x}\ndata: {path: x}\nloss: {_choice_: nll}", "run.dirr: unknown key"),
    ],
)
def test_other_files_are_no_record(tmp_path, text, message):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_resolved(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_resolved(tmp_path / "absent.yaml")


def test_the_fingerprint_ignores_what_may_change_on_resume(base, pieces, tmp_path):
    first = compose("train", base).fingerprint
    free = ["run.dir=elsewhere", "run.resume=auto", "log.console=off", "train.steps=7", "train.save_every=3"]
    free += ["eval.every=5", "eval.data.path=held_out.jsonl", "eval.n=4", "eval.temperature=1", "engine.max_rows=3"]
    assert compose("train", [*base, *free]).fingerprint == first
    moved = tmp_path / "moved.py"
    shutil.copy(pieces, moved)
    assert compose("train", [*base, f"reward={moved}:reward"]).fingerprint == first


@pytest.mark.parametrize(
    "override",
    [
        "run.seed=1",
        "model=n",
        "optim.lr=1",
        "rollout.n=4",
        "advantage=rloo",
        "filters=[constant]",
        "loss.clip_high=0.3",
    ],
)
def test_the_fingerprint_changes_with_what_changes_results(base, override):
    assert compose("train", [*base, override]).fingerprint != compose("train", base).fingerprint


def test_the_fingerprint_knows_order_content_and_schedule(base, pieces):
    def of(*more):
        return compose("train", [*base, *more]).fingerprint

    assert of("filters=[constant,missing]") != of("filters=[missing,constant]")
    before = of()
    pieces.write_text(pieces.read_text() + "\n# edited\n")
    assert of() != before
    assert of("optim.schedule=cosine", "train.steps=7") != of("optim.schedule=cosine", "train.steps=8")


def test_a_reward_file_is_kept_by_place_and_counted_by_content(tmp_path, monkeypatch):
    path = tmp_path / "score.py"
    path.write_text("def compute_score(solution_str):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    overrides = ["model=m", "data.path=d", "reward=function", "reward.path=score.py", "run.dir=r"]
    found = compose("train", overrides)
    assert found.tree["reward"]["path"] == str(path)
    (tmp_path / "config.yaml").write_text(found.yaml)
    monkeypatch.chdir("/")
    assert load_resolved(tmp_path / "config.yaml").run == found.run
    path.write_text("def compute_score(solution_str):\n    return 2.0\n")
    assert load_resolved(tmp_path / "config.yaml").fingerprint != found.fingerprint


def test_keys_that_may_change_exist(base):
    keys = set(compose("train", base).origins)
    for pattern in MAY_CHANGE:
        assert any(k == pattern or k.startswith(pattern.rstrip("*")) for k in keys), pattern


def test_the_time_in_run_dir_is_resolved_once(base):
    folder = compose("train", [*base[:-1]]).run.run.dir
    assert folder.startswith("runs/20") and "$" not in folder
    named = compose("train", [*base, "run.dir=runs/${model}_${rollout.n}"]).run.run.dir
    assert named == "runs/m_8"


def test_composing_leaves_nothing_behind(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    compose("train", base)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert Path.cwd() == tmp_path
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize("name", presets())
def test_every_preset_that_ships_composes(name):
    verb = "sft" if name.endswith("_sft") else "train"
    extra = {"gsm8k_smollm2": ["data.path=train.jsonl"], "tiny_sft": ["model=m", "data.path=rows.jsonl"]}
    assert compose(verb, [f"experiment={name}", *extra.get(name, [])]).notes == ()


def test_composing_for_sft_needs_no_transformers():
    code = (
        "import sys\nfrom coterie.config.compose import compose\n"
        "compose('generate', ['model=m', 'data.path=d', 'out=o.jsonl'])\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

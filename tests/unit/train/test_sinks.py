import importlib
import sys
import types

import pytest

from coterie.errors import ConfigError
from coterie.train.sinks import make_sinks


def make(names, path, **changes):
    return make_sinks(names, path, **{"project": "p", "name": "n", "config": "optim:\n  lr: 0.1\n", **changes})


def test_none():
    assert make_sinks((), None, project="", name="") == []


def test_an_unknown_or_doubled_name(tmp_path):
    with pytest.raises(ConfigError, match=r"log\.sinks: no sink 'mlflow'; there are tensorboard, wandb, trackio"):
        make(["mlflow"], tmp_path)
    with pytest.raises(ConfigError, match="names a sink twice"):
        make(["wandb", "wandb"], tmp_path)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_names_the_remedy(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    real = importlib.import_module

    def missing(module):
        if module == name:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(module)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=rf"pip install 'coterie\[{name}\]'"):
        make([name], tmp_path)


def scalars(path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_and_a_resumed_run(tmp_path):
    (sink,) = make(["tensorboard"], tmp_path)
    for step in range(4):
        sink.log(step, {"reward/reward": step / 4, "eval/pass@4": 0.5})
    sink.close()
    (sink,) = make(["tensorboard"], tmp_path, resume_step=1)
    sink.log(2, {"reward/reward": 9.0})
    sink.close()
    assert scalars(tmp_path)["reward/reward"] == [(0, 0.0), (1, 0.25), (2, 9.0)]


class FakeRun:
    def __init__(self, settings):
        self.settings, self.points, self.finished = settings, [], False

    def log(self, metrics, step):
        self.points.append((step, metrics))

    def finish(self):
        self.finished = True


class UsageError(Exception):
    pass


@pytest.fixture
def wandb(monkeypatch):
    """Stands in for wandb: `init` fails without a login unless the mode is offline."""
    fake = types.ModuleType("wandb")
    fake.errors = types.SimpleNamespace(UsageError=UsageError)
    fake.logged_in, fake.runs = True, []

    def init(**settings):
        if not fake.logged_in and settings.get("mode") != "offline":
            raise UsageError("No API key configured.")
        fake.runs.append(FakeRun(settings))
        return fake.runs[-1]

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_resumes_under_the_id_of_the_run_directory(tmp_path, wandb):
    (tmp_path / "manifest.json").write_text('{"id": "abc123"}')
    (sink,) = make(["wandb"], tmp_path)
    sink.log(3, {"a/b": 1.0})
    sink.close()
    (run,) = wandb.runs
    assert run.settings["id"] == "abc123" and run.settings["resume"] == "allow"
    assert run.settings["config"] == {"optim": {"lr": 0.1}} and run.settings["dir"] == str(tmp_path)
    assert run.points == [(3, {"a/b": 1.0})] and run.finished


def test_wandb_without_a_login_records_offline_and_says_so(tmp_path, wandb, caplog):
    wandb.logged_in = False
    make(["wandb"], tmp_path)
    assert wandb.runs[0].settings["mode"] == "offline"
    assert "Recording offline" in caplog.text and "wandb sync" in caplog.text


def test_trackio(tmp_path, monkeypatch):
    fake = types.ModuleType("trackio")
    fake.init = lambda **settings: FakeRun(settings)
    monkeypatch.setitem(sys.modules, "trackio", fake)
    (sink,) = make(["trackio"], tmp_path)
    sink.log(0, {"a": 1.0})
    sink.close()
    assert sink._run.points == [(0, {"a": 1.0})] and sink._run.finished
    assert sink._run.settings["resume"] == "never", "another run of that name stays apart"
    (sink,) = make(["trackio"], tmp_path, resume_step=0)
    assert sink._run.settings["resume"] == "allow"

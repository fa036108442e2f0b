import sys

import pytest

from coterie.config import sweep as sweeping
from coterie.config.overrides import parse_overrides
from coterie.config.primary import PRIMARIES
from coterie.errors import ConfigError, RewardError

RUNNER = """
from coterie.errors import RewardError

seen = []

def run(resolved):
    seen.append(resolved)
    if resolved.run.rollout.n == 13:
        raise RewardError("thirteen")
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A runner that notes what it is given."""
    (tmp_path / "noting_runner.py").write_text(RUNNER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeping, "RUNNERS", {"train": "noting_runner:run"})
    yield lambda: sys.modules["noting_runner"].seen
    sys.modules.pop("noting_runner", None)


def test_every_combination_is_a_run_of_its_own(base, runs, tmp_path):
    before = list(sys.argv)
    sweeping.sweep(
        "train", [*base, "rollout.n=2,4", "filters=[constant],[]", "+model_kwargs.a=1", "advantage=grpo@trl"]
    )
    found = [(r.run.rollout.n, list(r.run.filters), r.run.run.dir) for r in runs()]
    folder = tmp_path / "run"
    assert found == [
        (2, ["constant"], f"{folder}/0"),
        (2, [], f"{folder}/1"),
        (4, ["constant"], f"{folder}/2"),
        (4, [], f"{folder}/3"),
    ]
    assert all(r.run.advantage.eps == 1e-4 and r.run.model_kwargs == {"a": 1} for r in runs())
    assert runs()[0].origins["rollout.n"] == "command line: rollout.n=2"
    assert not any((folder / "0").iterdir()), "a run directory starts empty"
    assert sys.argv == before


def test_all_are_checked_before_the_first_starts(base, runs, tmp_path):
    with pytest.raises(ConfigError, match="needs rollout.n=2"):
        sweeping.sweep("train", [*base, "rollout.n=2,1"])
    assert "noting_runner" not in sys.modules
    assert not (tmp_path / "run").exists()


def test_what_stops_a_run_comes_out_as_it_is(base, runs):
    with pytest.raises(RewardError, match="thirteen"):
        sweeping.sweep("train", [*base, "rollout.n=2,13"])


def test_refused(base, runs):
    with pytest.raises(ConfigError, match="every key has one"):
        sweeping.sweep("train", [*base, "rollout.n=2"])
    with pytest.raises(ConfigError, match="can't be started"):
        sweeping.sweep("train", [*base, "optim.lr=interval(1,2)"])


def test_combinations_leave_hydra_s_settings_out():
    requests = parse_overrides(
        ["rollout.n=range(2,4)", "optim.lr=interval(0,1)", "hydra/launcher=basic", "train.steps=5"],
        PRIMARIES["train"],
        sweep=True,
    )
    assert list(sweeping.combinations(requests)) == [["rollout.n=2", "train.steps=5"], ["rollout.n=3", "train.steps=5"]]

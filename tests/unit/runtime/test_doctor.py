import sys
from types import SimpleNamespace

import pytest

from coterie.runtime import doctor


def by_name(checks):
    return {c.name: c for c in checks}


def test_a_finding_for_everything_that_matters():
    found = by_name(doctor.report())
    for name in (
        "python",
        "torch",
        "transformers",
        "reasoning-gym",
        "cpu",
        "local",
        "memory",
        "disk for runs",
        "threads",
    ):
        assert name in found
    assert found["torch"].status == "ok"
    assert found["cpu"].detail
    assert {c.status for c in found.values()} <= {"ok", "missing", "problem"}


def test_every_gap_has_a_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda name: None)
    found = by_name([*doctor._versions(), *doctor._packages()])
    assert found["torch"].status == "problem" and found["torch"].remedy == "pip install 'torch>=2.11'"
    assert found["wandb"].remedy == "pip install 'coterie[wandb]'"
    assert found["hydra-joblib-launcher"].remedy == "pip install hydra-joblib-launcher"
    assert all(c.remedy for c in found.values() if c.status != "ok")


@pytest.mark.parametrize(("version", "status"), [("2.13.0+cpu", "ok"), ("2.10.1", "problem"), ("2.12.0.dev1", "ok")])
def test_versions_are_compared(monkeypatch, version, status):
    monkeypatch.setattr(doctor, "_installed", lambda name: version if name == "torch" else "999")
    assert by_name(doctor._versions())["torch"].status == status


def test_python_and_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    assert by_name(doctor._versions())["python"].remedy == "use Python 3.11 or 3.12"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: SimpleNamespace(free=2**30))
    found = by_name(doctor._machine(tmp_path / "not" / "there"))
    assert found["disk for runs"].status == "problem" and "GiB" in found["disk for runs"].remedy


def test_an_engine_that_does_not_load_says_why(monkeypatch):
    def fail(slot, choice):
        raise ImportError("no module named x")

    monkeypatch.setattr(doctor, "find_piece", fail)
    assert all("no module named x" in c.detail and c.status == "missing" for c in doctor._slots())

"""Reference pages are those the code would write, and the README's commands are run somewhere."""

from pathlib import Path

from coterie.docs import stale

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_current():
    assert stale(ROOT / "docs") == [], "run make docs"

"""The reference pages made from code: `python -m coterie.docs` writes them, `--check` says which are stale."""

from __future__ import annotations

import sys
from pathlib import Path


def pages() -> dict[str, str]:
    """File name under `docs/` to its whole content."""
    from coterie.algos import catalogue
    from coterie.config import reference
    from coterie.train import metric_specs

    return {
        "algorithms.md": catalogue.markdown(),
        "config.md": reference.markdown(),
        "metrics.md": metric_specs.markdown(),
    }


def stale(folder: Path) -> list[str]:
    """Names of pages in `folder` that differ from what the code says now."""
    found = []
    for name, text in pages().items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found.append(name)
    return found


def main(arguments: list[str]) -> int:
    """Write the pages into `docs/` of the working directory, or check them."""
    folder = Path("docs")
    if "--check" in arguments:
        old = stale(folder)
        sys.stderr.write("".join(f"docs/{name} is stale: run make docs\n" for name in old))
        return 1 if old else 0
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

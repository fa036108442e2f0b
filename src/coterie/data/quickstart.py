"""The quickstart's task: sums and differences of three or four digits, and what the warm start imitates.

The warm start teaches two ways to answer. First come worked solutions only, until the model can work a sum out; then
mostly bare answers, so that it would rather state an answer at once, which it mostly gets wrong. GRPO sees only the
verifier's verdict and finds that working it out pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coterie.config.schema import DataConfig
from coterie.core.keys import uniforms
from coterie.core.types import Example
from coterie.data.filters import without_prompts
from coterie.data.sources import load_examples
from coterie.data.worked import worked_solution

PATH = "gym:chain_sum"
OPTIONS = (("min_terms", 3), ("max_terms", 4), ("min_digits", 1), ("max_digits", 1))
TEMPLATE = "{expression} = "

CHARACTERS = "0123456789+-=# \n"
WORDS = (" + ", " - ", " = ", "#### ")
"""Strings that are one token each beside the characters: a problem with its solution has 31 tokens on average."""


def problems(*, size: int, seed: int) -> list[Example]:
    """`size` problems; two seeds give different problems, though the short ones may recur."""
    config = DataConfig(path=PATH, options=dict(OPTIONS), template=TEMPLATE, size=size)
    return load_examples(config, seed=seed)


def warm_start_rows(
    count: int, *, seed: int, held_out: Sequence[Example] = (), worked: float = 0.7, bare: float = 0.7
) -> Iterator[dict[str, str]]:
    """Rows `{id, prompt, response}` in the order in which they are to be learned (so `data.shuffle=false`).

    Args:
        count: problems made; those of `held_out` are left out of them.
        seed: of the problems and of the choice of answers.
        held_out: evaluation problems.
        worked: share of the rows at the beginning that are all worked solutions.
        bare: share of bare answers among the rest.
    """
    examples = problems(size=count, seed=seed)
    if held_out:
        examples, _ = without_prompts(examples, held_out)
    draws = uniforms("warm_start", seed, count=len(examples))
    for number, (example, draw) in enumerate(zip(examples, draws, strict=True)):
        solution = worked_solution(example)
        if number >= worked * len(examples) and draw < bare:
            solution = solution.splitlines()[-1]
        yield {"id": example.id, "prompt": str(example.prompt[-1]["content"]), "response": solution}

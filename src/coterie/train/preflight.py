"""What is checked before step 0, while nothing has been spent yet."""

from __future__ import annotations

from coterie.config.primary import RLRun
from coterie.core.protocols import Context
from coterie.errors import RewardError
from coterie.rewards.smoke import smoke_test
from coterie.runtime.parts import Parts


async def check_reward(run: RLRun, parts: Parts) -> list[str]:
    """Score the data's own references and shuffled ones (`train.smoke_test`).

    Returns:
        Plain-language lines for the console; none when all is well or there are no references.

    Raises:
        RewardError: when the test fails and `train.smoke_test` is "error".
    """
    examples = parts.cursor.items[: run.train.smoke_test_examples]
    if run.train.smoke_test == "off" or all(e.reference is None for e in examples):
        return []
    context = Context(seed=run.run.seed, split="smoke", resources=parts.resources)
    report = await smoke_test(examples, run.reward, context)
    if report.ok:
        return []
    if run.train.smoke_test == "error":
        raise RewardError("the reward's smoke test failed: " + " ".join(report.diagnosis))
    return [f"smoke test: {line}" for line in report.diagnosis]

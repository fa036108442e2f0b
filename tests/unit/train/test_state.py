import json
from types import SimpleNamespace

from coterie.algos.coefs import AdaptiveEntropy
from coterie.train.state import LoopState

EVAL = SimpleNamespace(metric="eval/accuracy")
RUN = SimpleNamespace(eval=EVAL, entropy_control=AdaptiveEntropy(target=0.5, delta=0.1), kl_control=None)


def test_a_better_evaluation_is_the_best_and_worse_ones_are_counted():
    state = LoopState(step=5).evaluated(RUN, {"eval/accuracy": 0.5})
    assert (state.best, state.best_step, state.is_best) == (0.5, 5, True)
    worse = LoopState(**(state.to_dict() | {"step": 10})).evaluated(RUN, {"eval/accuracy": 0.4})
    assert (worse.best, worse.is_best, worse.evals_without_gain) == (0.5, False, 1)
    assert worse.evaluations == {"5": 0.5, "10": 0.4}
    assert worse.evaluated(RUN, {}).evals_without_gain == 2


def test_controllers_see_the_metrics_and_survive_the_checkpoint():
    fresh = LoopState.fresh(RUN)
    moved = fresh.advanced(RUN, 1, {"policy/entropy": 0.1})
    assert moved.step == 1
    assert moved.coefficients(RUN)["entropy_coef"] > fresh.coefficients(RUN)["entropy_coef"]
    again = LoopState.from_dict(json.loads(json.dumps(moved.to_dict())))
    assert again.coefficients(RUN) == moved.coefficients(RUN)

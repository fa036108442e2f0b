"""Naive loops for every advantage estimator, to be read against the papers. Writes advantages.json beside this file.

    python tests/golden/make_advantages.py

Plain Python floats, no numpy, nothing of coterie. A batch is a list of groups, a group a list of rollouts, a rollout a
dict: scores (None = missing), n action tokens, named lists with one number an action token, cot = [start, end).
`None` scores enter no statistic and give advantage 0; a group whose scores are all equal gives 0.
"""

import json
import math
import random
from itertools import combinations
from pathlib import Path

FILE = Path(__file__).with_name("advantages.json")
STREAMS = ("old_logprobs", "ref_logprobs", "prm_logprobs", "teacher_logprobs")


def split(draw, n):
    """Lengths of turns that sum to n."""
    out = []
    while sum(out) < n:
        out.append(draw.randint(1, n - sum(out)))
    return out


def make_batch(seed, missing=True, lengths=(1, 6)):
    """Groups of 4, 3, 5 and 3 rollouts; the second is constant in "reward"."""
    draw = random.Random(seed)
    batch = []
    for size in (4, 3, 5, 3):
        group = []
        for _ in range(size):
            n = draw.randint(*lengths)
            start = draw.randint(0, n)
            rollout = {
                "n": n,
                "scores": {
                    "reward": draw.choice([0.0, 1.0, 1.0, round(draw.random(), 3)]),
                    "format": draw.choice([0.0, 0.5]),
                    "classmate": round(draw.random(), 3),
                },
                "cot": [start, draw.randint(start, n)],
                "turns": (turns := split(draw, n)),
                "anchors": [draw.choice("abc") for _ in turns],
                "bootstrap_value": 0.0,
                "values": [round(draw.uniform(-1, 1), 3) for _ in range(n)],
                "sum_probs_squared": [round(draw.uniform(0.3, 1), 3) for _ in range(n)],
                "importance": [round(draw.uniform(0.5, 2), 3) for _ in range(n)],
                **{name: [round(-draw.uniform(0.05, 3), 3) for _ in range(n)] for name in STREAMS},
            }
            group.append(rollout)
        batch.append(group)
    for rollout in batch[1]:
        rollout["scores"]["reward"] = 0.3
    batch[0][1]["bootstrap_value"] = 0.4
    if missing:
        batch[2][3]["scores"]["reward"] = batch[2][3]["scores"]["classmate"] = None
        batch[3][0]["scores"]["classmate"] = None
    return batch


# Means over the scores that are there, and their relatives.


def mean(values):
    return sum(values) / len(values)


def std(values, ddof):
    m = mean(values)
    return math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - ddof))


def there(values):
    return [v for v in values if v is not None]


def constant(values):
    return len(set(there(values))) <= 1


def per_rollout(batch, function):
    """function(group) gives one number a rollout; spread over its action tokens."""
    return [[[a] * r["n"] for r, a in zip(g, function(g), strict=True)] for g in batch]


def rewards_of(group, score="reward"):
    return [r["scores"][score] for r in group]


def group_norm(scores, divide=True, ddof=1, eps=1e-6, leave_one_out=False, over="group", batch_std=None):
    out = []
    for i, s in enumerate(scores):
        if s is None or constant(scores):
            out.append(0.0)
            continue
        others = there(scores[:i] + scores[i + 1 :])
        a = s - (mean(others) if leave_one_out else mean(there(scores)))
        if divide and over == "others":
            spread = 0.0 if constant(others) else std(others, ddof)
            a = a / (spread + eps) if spread > 0 else a
        elif divide:
            a /= (batch_std if over == "batch" else std(there(scores), ddof)) + eps
        out.append(a)
    return out


def whiten(per_token, skip, ddof=1, eps=1e-8, floor="variance", center=True, divide=True, over="tokens"):
    """per_token[g][i] lists; skip(g, i) leaves rollout i of group g alone."""
    values = []
    for g, group in enumerate(per_token):
        for i, tokens in enumerate(group):
            if not skip(g, i) and tokens:
                values += tokens if over == "tokens" else [mean(tokens)]
    m = mean(values)
    variance = sum((v - m) ** 2 for v in values) / (len(values) - ddof)
    scale = {
        "variance": 1 / math.sqrt(variance + eps),
        "std": 1 / (math.sqrt(variance) + eps),
        "clamp": 1 / math.sqrt(max(variance, eps)),
    }[floor]
    scale, shift = (scale if divide else 1.0), (m if center else 0.0)
    return [
        [list(t) if skip(g, i) else [(v - shift) * scale for v in t] for i, t in enumerate(group)]
        for g, group in enumerate(per_token)
    ]


def token_rewards(rollout):
    return [0.0] * (rollout["n"] - 1) + [rollout["scores"]["reward"]]


def to_go(rewards, gamma=1.0):
    return [sum(gamma ** (s - t) * rewards[s] for s in range(t, len(rewards))) for t in range(len(rewards))]


# The estimators. Arguments are those of the dataclasses.


def grpo(batch, std=True, ddof=1, eps=1e-6, leave_one_out=False, std_over="group"):
    everyone = globals()["std"](there([s for g in batch for s in rewards_of(g)]), ddof)
    return per_rollout(batch, lambda g: group_norm(rewards_of(g), std, ddof, eps, leave_one_out, std_over, everyone))


def dr_grpo(batch):
    return per_rollout(batch, lambda g: group_norm(rewards_of(g), divide=False))


def rloo(batch):
    return per_rollout(batch, lambda g: group_norm(rewards_of(g), divide=False, leave_one_out=True))


def opo(batch):
    def one(group):
        scored = [r for r in group if r["scores"]["reward"] is not None]
        if constant(rewards_of(group)):
            return [0.0] * len(group)
        baseline = sum(r["n"] * r["scores"]["reward"] for r in scored) / sum(r["n"] for r in scored)
        return [0.0 if s is None else s - baseline for s in rewards_of(group)]

    return per_rollout(batch, one)


def gpg(batch, f_norm=1.0, count="informative"):
    total = sum(len(there(rewards_of(g))) for g in batch)
    if count == "informative":
        valid = sum(len(there(rewards_of(g))) for g in batch if not constant(rewards_of(g)))
    else:
        valid = sum(s != 0 for g in batch for s in there(rewards_of(g)))
    return per_rollout(batch, lambda g: [total / valid * a / f_norm for a in group_norm(rewards_of(g), divide=False)])


def pass_at_k(batch, k=0, std=False, ddof=1, eps=1e-6):
    def one(group):
        scores = rewards_of(group)
        index = [i for i, s in enumerate(scores) if s is not None]
        size = len(index) if k == 0 else min(k, len(index))
        out = [0.0] * len(scores)
        for i in index:
            sets = [c for c in combinations(index, size) if i in c]
            gains = [max(scores[j] for j in c) - max(scores[j] for j in c if j != i) for c in sets]
            out[i] = mean(gains) / (globals()["std"](there(scores), ddof) + eps) if std else mean(gains)
        return [0.0] * len(scores) if constant(scores) else out

    return per_rollout(batch, one)


def maxrl(batch, eps=0.0):
    def one(group):
        m = mean(there(rewards_of(group)))
        return [a / (m + eps) if m > 0 else 0.0 for a in group_norm(rewards_of(group), divide=False)]

    return per_rollout(batch, one)


def unscored(batch, *scores):
    return lambda g, i: any(batch[g][i]["scores"][s] is None for s in scores or ("reward",))


def reinforce_plus_plus(batch, gamma=1.0, std=True, ddof=1, eps=1e-8, floor="variance"):
    skip = unscored(batch)
    returns = [
        [[0.0] * r["n"] if skip(g, i) else to_go(token_rewards(r), gamma) for i, r in enumerate(group)]
        for g, group in enumerate(batch)
    ]
    return whiten(returns, skip, ddof, eps, floor, divide=std)


def reinforce_plus_plus_baseline(batch, ddof=1, eps=1e-8, floor="variance", zero_groups=False):
    missing = unscored(batch)
    return whiten(
        dr_grpo(batch),
        lambda g, i: missing(g, i) or (not zero_groups and constant(rewards_of(batch[g]))),
        ddof,
        eps,
        floor,
    )


def remax(batch):
    """The first rollout of each group is the greedy one."""
    out = []
    for greedy, *sampled in batch:
        b = greedy["scores"]["reward"]
        out.append(
            [
                [0.0] * r["n"] if r["scores"]["reward"] is None else [x - b for x in to_go(token_rewards(r))]
                for r in sampled
            ]
        )
    return out


def otb(batch, zero_tail=False, importance="", eps=1e-8):
    out = []
    for group in batch:
        returns, weights = [], []
        for r in group:
            scored = r["scores"]["reward"] is not None
            returns.append(to_go(token_rewards(r)) if scored else [])
            running, row = 0.0, []
            for t in range(len(returns[-1])):
                s = 1 - 2 * math.exp(r["old_logprobs"][t]) + r["sum_probs_squared"][t]
                running += s * (r["importance"][t] ** 2 if importance else 1.0)
                row.append(running)
            weights.append(row)
        result = []
        for i, r in enumerate(group):
            row = []
            for t in range(r["n"]):
                alive = [j for j in range(len(group)) if t < len(returns[j])]
                if r["scores"]["reward"] is None or len({j for j in range(len(group)) if returns[j]}) < 2:
                    row.append(0.0)
                    continue
                if zero_tail and len(alive) == 1:
                    b = 0.0
                elif len({returns[j][t] for j in alive}) == 1:
                    b = returns[i][t]
                else:
                    b = sum(returns[j][t] * weights[j][t] for j in alive) / (sum(weights[j][t] for j in alive) + eps)
                row.append(returns[i][t] - b)
            result.append(row)
        out.append(result)
    return out


def gae(batch, gamma=1.0, lam=0.95, lam_of="fixed", alpha=0.05, whiten=True, ddof=1, eps=1e-8, floor="variance"):
    """The sum of discounted errors, written out instead of the recursion."""
    skip = unscored(batch)
    out = []
    for g, group in enumerate(batch):
        rows = []
        for i, r in enumerate(group):
            n = r["n"]
            own = {"fixed": lam, "length": max(0.0, 1 - 1 / (alpha * n)), "position": lam ** (1 / max(n - 1, 1))}[
                lam_of
            ]
            own = 1.0 if lam_of == "position" and n == 1 else own
            values = [*r["values"], r["bootstrap_value"]]
            rewards = [0.0] * n if skip(g, i) else token_rewards(r)
            delta = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(n)]
            rows.append([0.0] * n if skip(g, i) else to_go(delta, gamma * own))
        out.append(rows)
    return globals()["whiten"](out, skip, ddof, eps, floor) if whiten else out


def gae_of_turns(batch, level, gamma=1.0, lam=0.95, whiten=True):
    """GAE with one step a turn: value of its first token, sum of its rewards, one advantage."""
    skip = unscored(batch)
    out = []
    for g, group in enumerate(batch):
        rows = []
        for i, r in enumerate(group):
            row, at, deltas = [], 0, []
            rewards = [0.0] * r["n"] if skip(g, i) else token_rewards(r)
            for length in r["turns"]:
                after = r["values"][at + length] if at + length < r["n"] else r["bootstrap_value"]
                deltas.append(sum(rewards[at : at + length]) + gamma * after - r["values"][at])
                at += length
            for a, length in zip(to_go(deltas, gamma * lam), r["turns"], strict=True):
                row += [0.0 if skip(g, i) else a] * length
            rows.append(row)
        out.append(rows)
    return globals()["whiten"](out, skip) if whiten else out


def gigpo(batch, step_weight=1.0, gamma=0.95, std=True):
    out = []
    for group in batch:
        episode = group_norm(rewards_of(group), std)
        visits = {}
        for i, r in enumerate(group):
            turns = len(r["turns"])
            for k in range(turns):
                value = r["scores"]["reward"]
                value = None if value is None else gamma ** (turns - 1 - k) * value
                visits.setdefault(r["anchors"][k], []).append((i, k, value))
        step = {}
        for same in visits.values():
            for (i, k, _), a in zip(same, group_norm([v for _, _, v in same], std), strict=True):
                step[i, k] = a
        out.append(
            [
                [episode[i] + step_weight * step[i, k] for k, length in enumerate(r["turns"]) for _ in range(length)]
                for i, r in enumerate(group)
            ]
        )
    return out


def gdpo(batch, scores, weights=(), weigh="advantages", std=True, eps=1e-6, missing="any", whiten="sequences",
         whiten_eps=1e-6, whiten_floor="std", zero_groups=False, leave_one_out=False, std_over="group"):  # fmt: skip
    weights = weights or [1.0] * len(scores)
    sums = []
    for group in batch:
        total = [0.0] * len(group)
        for name, w in zip(scores, weights, strict=True):
            column = rewards_of(group, name)
            if missing == "any":
                column = [None if None in [r["scores"][k] for k in scores] else r["scores"][name] for r in group]
            column = [s if s is None or weigh == "advantages" else w * s for s in column]
            part = group_norm(column, std, 1, eps, leave_one_out, std_over)
            total = [t + p * (w if weigh == "advantages" else 1.0) for t, p in zip(total, part, strict=True)]
        sums.append(total)
    spread = [[[a] * r["n"] for r, a in zip(g, s, strict=True)] for g, s in zip(batch, sums, strict=True)]
    count = any if missing == "any" else all
    lacking = lambda g, i: count(batch[g][i]["scores"][s] is None for s in scores)  # noqa: E731
    skip = lambda g, i: lacking(g, i) or (not zero_groups and not any(sums[g]))  # noqa: E731
    if whiten == "off":
        return spread
    return globals()["whiten"](spread, skip, 1, whiten_eps, whiten_floor, over=whiten)


def classmate(batch, combine="rewards", tokens="partial", non_negative=False, whiten=False, std=False, eps=1e-6,
              zero_groups=False):  # fmt: skip
    mains = [group_norm(rewards_of(g), std, 1, eps) for g in batch]
    joint = []
    for group, main in zip(batch, mains, strict=True):
        m, c = rewards_of(group), rewards_of(group, "classmate")
        lacks = [a is None or b is None for a, b in zip(m, c, strict=True)]
        if combine == "rewards":
            j = group_norm([None if x else a + b for x, a, b in zip(lacks, m, c, strict=True)], std, 1, eps)
        else:
            own = group_norm(c, std, 1, eps)
            j = [a + (max(b, 0.0) if non_negative else b) for a, b in zip(main, own, strict=True)]
        joint.append([None if x else v for x, v in zip(lacks, j, strict=True)])
    if whiten:
        used = [v for row in joint for v in there(row) if zero_groups or any(there(row))]
        m, s = mean(used), globals()["std"](used, 1)
        joint = [
            row
            if not zero_groups and not any(there(row))
            else [None if v is None else (v - m) / (s + eps) for v in row]
            for row in joint
        ]
    out = []
    for group, main, row in zip(batch, mains, joint, strict=True):
        feel = [[tokens == "all" or r["cot"][0] <= t < r["cot"][1] for t in range(r["n"])] for r in group]
        pairs = zip(feel, main, row, strict=True)
        out.append([[(j or 0.0) if f else m for f in flags] for flags, m, j in pairs])
    return out


def prime(batch, beta=0.05, process_coef=5.0, outcome_coef=5.0, gamma=1.0, lam=0.0, own="rollout", last_token=True,
          scale="none", whiten=True):  # fmt: skip
    skip = unscored(batch)
    process = []
    for group in batch:
        rows = []
        for r in group:
            q = [beta * (a - b) for a, b in zip(r["prm_logprobs"], r["ref_logprobs"], strict=True)]
            q = to_go(q, lam) if lam else q
            rows.append(q if last_token else [*q[:-1], 0.0])
        process.append(rows)
    if scale == "batch":
        peak = max(
            abs(x) for g, rows in enumerate(process) for i, p in enumerate(rows) if not skip(g, i) for x in to_go(p)
        )
        process = [[[x / (peak + 1e-6) for x in p] for p in rows] for rows in process]
    out = []
    for g, (group, rows) in enumerate(zip(batch, process, strict=True)):
        scored = [i for i in range(len(group)) if not skip(g, i)]
        outcome = group_norm(rewards_of(group), divide=False, leave_one_out=True)
        result = [[0.0] * r["n"] for r in group]
        for i in scored:
            others = sum(mean(rows[j]) for j in scored if j != i)
            if own == "token":
                total = others + mean(rows[i])
                centred = [x - (total - x) / (len(scored) - 1) for x in rows[i]]
            else:
                centred = [x - others / (len(scored) - 1) for x in rows[i]]
            result[i] = [process_coef * x + outcome_coef * outcome[i] for x in to_go(centred, gamma)]
        out.append(result)
    return globals()["whiten"](out, skip) if whiten else out


def on_policy_distillation(batch, coef=1.0):
    return [
        [[coef * (a - b) for a, b in zip(r["teacher_logprobs"], r["old_logprobs"], strict=True)] for r in g]
        for g in batch
    ]


def minillm(batch, gamma=1.0, normalise_length=True):
    out = []
    for group in batch:
        rows = []
        for r in group:
            gap = [a - b for a, b in zip(r["teacher_logprobs"], r["old_logprobs"], strict=True)]
            n = r["n"]
            sums = [sum(gamma**s * gap[s] for s in range(t, n)) for t in range(n)]
            left = [max(sum(gamma**s for s in range(t, n)), 1e-4) for t in range(n)]
            rows.append([a / b for a, b in zip(sums, left, strict=True)] if normalise_length else sums)
        out.append(rows)
    return out


CASES = [
    ("GRPO", grpo, {}),
    ("GRPO", grpo, {"std": False}),
    ("GRPO", grpo, {"ddof": 0, "eps": 1e-4}),
    ("GRPO", grpo, {"leave_one_out": True}),
    ("GRPO", grpo, {"leave_one_out": True, "std_over": "others"}),
    ("GRPO", grpo, {"std_over": "batch"}),
    ("DrGRPO", dr_grpo, {}),
    ("RLOO", rloo, {}),
    ("OPO", opo, {}),
    ("GPG", gpg, {}),
    ("GPG", gpg, {"count": "nonzero", "f_norm": 2.0}),
    ("PassAtK", pass_at_k, {}),
    ("PassAtK", pass_at_k, {"k": 2}),
    ("PassAtK", pass_at_k, {"k": 3, "std": True}),
    ("MaxRL", maxrl, {}),
    ("MaxRL", maxrl, {"eps": 1e-6}),
    ("ReinforcePlusPlus", reinforce_plus_plus, {}),
    ("ReinforcePlusPlus", reinforce_plus_plus, {"gamma": 0.9, "ddof": 0, "floor": "clamp"}),
    ("ReinforcePlusPlus", reinforce_plus_plus, {"std": False}),
    ("ReinforcePlusPlusBaseline", reinforce_plus_plus_baseline, {}),
    ("ReinforcePlusPlusBaseline", reinforce_plus_plus_baseline, {"zero_groups": True}),
    ("ReMax", remax, {}),
    ("OTB", otb, {}),
    ("OTB", otb, {"zero_tail": True}),
    ("OTB", otb, {"importance": "importance"}),
    ("GAE", gae, {}),
    ("GAE", gae, {"gamma": 0.97, "lam": 0.8, "whiten": False}),
    ("GAE", gae, {"lam_of": "length", "alpha": 0.5}),
    ("GAE", gae, {"lam_of": "position", "lam": 0.5, "floor": "std", "eps": 1e-5}),
    ("GAE", gae_of_turns, {"level": "turn", "gamma": 0.9, "lam": 0.7}),
    ("GiGPO", gigpo, {}),
    ("GiGPO", gigpo, {"std": False, "step_weight": 0.5, "gamma": 0.5}),
    ("GDPO", gdpo, {"scores": ["reward", "format"]}),
    ("GDPO", gdpo, {"scores": ["reward", "format", "classmate"], "weights": [1.0, 0.5, 2.0]}),
    ("GDPO", gdpo, {"scores": ["reward", "classmate"], "missing": "own", "whiten": "tokens", "zero_groups": True}),
    ("GDPO", gdpo, {"scores": ["reward", "format"], "weights": [1.0, 3.0], "weigh": "scores", "whiten": "off"}),
    ("GDPO", gdpo, {"scores": ["reward", "format"], "weights": [1.0, 3.0], "weigh": "scores", "std": False}),
    ("GDPO", gdpo, {"scores": ["reward", "classmate"], "leave_one_out": True, "std_over": "others"}),
    ("Classmate", classmate, {}),
    ("Classmate", classmate, {"std": True, "tokens": "all"}),
    ("Classmate", classmate, {"combine": "advantages", "std": True}),
    ("Classmate", classmate, {"combine": "advantages", "std": True, "non_negative": True}),
    ("Classmate", classmate, {"combine": "advantages", "whiten": True, "zero_groups": True}),
    ("Classmate", classmate, {"combine": "advantages", "whiten": True, "std": True}),
    ("PRIME", prime, {}),
    ("PRIME", prime, {"own": "token", "last_token": False, "scale": "batch"}),
    ("PRIME", prime, {"gamma": 0.9, "lam": 0.5, "whiten": False}),
    ("OnPolicyDistillation", on_policy_distillation, {"coef": 0.5}),
    ("MiniLLM", minillm, {"gamma": 0.9}),
    ("MiniLLM", minillm, {"gamma": 0.9, "normalise_length": False}),
]  # fmt: skip


def build():
    """What advantages.json holds."""
    batches = {"some_missing": make_batch(1), "all_there": make_batch(2, missing=False)}
    cases = [
        {"estimator": name, "fields": fields, "batch": key, "advantages": function(batch, **fields)}
        for name, function, fields in CASES
        for key, batch in batches.items()
    ]
    return {"batches": batches, "cases": cases}


if __name__ == "__main__":
    FILE.write_text(json.dumps(build(), separators=(",", ":")) + "\n", encoding="utf-8")

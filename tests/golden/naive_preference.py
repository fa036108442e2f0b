"""Preference losses as naive loops over plain Python floats, pair by pair, to be checked against the papers."""

from math import exp, log, log1p


def sig(x):
    return 1 / (1 + exp(-x))


def logsig(x):
    return -log1p(exp(-x)) if x > -30 else x


def answers(d):
    """[(chosen tokens, rejected tokens)] for every group."""
    out = []
    for g in sorted(set(d["group"])):
        members = [s for s in range(len(d["group"])) if d["group"][s] == g]
        members.sort(key=lambda s: -d["rewards"][s])
        out.append(tuple([t for t in range(len(d["sequence"])) if d["sequence"][t] == s] for s in members))
    return out


def divergence(x, f):
    kind = f.get("divergence", "reverse_kl")
    if kind == "reverse_kl":
        return x
    if kind == "forward_kl":
        return 1 - exp(-x)
    if kind == "js":
        return log(2 * exp(x) / (exp(x) + 1))
    alpha = f.get("alpha", 0.5)
    return (exp((alpha - 1) * x) - 1) / (alpha - 1)


def sums(d, lp, chosen, rejected, f):
    """Log-ratios of both answers, with LD-DPO's weight beyond the shorter length."""
    shared = min(len(chosen), len(rejected))
    out = []
    for tokens in (chosen, rejected):
        weights = [1.0 if i < shared else f.get("tail_weight", 1.0) for i in range(len(tokens))]
        out.append(sum(w * (lp[t] - d["ref"][t]) for w, t in zip(weights, tokens, strict=True)))
    return out


def margin(d, lp, pair, f, normalize=False):
    scores = [divergence(x, f) for x in sums(d, lp, *pair, f)]
    if f.get("length_normalize", normalize):
        scores = [s / len(tokens) for s, tokens in zip(scores, pair, strict=True)]
    return scores[0] - scores[1]


def dpo_of(x, e):
    return -(1 - e) * logsig(x) - e * logsig(-x)


def dpo(d, lp, pair, f):
    return dpo_of(f["beta"] * margin(d, lp, pair, f), f.get("label_smoothing", 0.0))


def robust(d, lp, pair, f):
    x, e = f["beta"] * margin(d, lp, pair, f), f["label_smoothing"]
    return (-(1 - e) * logsig(x) + e * logsig(-x)) / (1 - 2 * e)


def hinge(d, lp, pair, f):
    return max(0.0, 1 - f["beta"] * margin(d, lp, pair, f))


def ipo(d, lp, pair, f):
    return (margin(d, lp, pair, f, normalize=True) - 1 / (2 * f["beta"])) ** 2


def exo(d, lp, pair, f):
    q, e = sig(f["beta"] * margin(d, lp, pair, f)), f["label_smoothing"]
    return q * (log(q) - log(1 - e)) + (1 - q) * (log(1 - q) - log(e))


def discopop(d, lp, pair, f):
    x = f["beta"] * margin(d, lp, pair, f)
    g = sig(x / f.get("tau", 0.05))
    return -(1 - g) * logsig(x) + g * exp(-x)


def nca(d, lp, pair, f):
    c, r = (f["beta"] * x for x in sums(d, lp, *pair, f))
    return -logsig(c) - logsig(-c) / 2 - logsig(-r) / 2


def bco(d, lp, pair, f):
    c, r = (f["beta"] * x for x in sums(d, lp, *pair, f))
    return -logsig(c) - logsig(-r)


def sppo(d, lp, pair, f):
    c, r = sums(d, lp, *pair, f)
    return (c - 1 / (2 * f["beta"])) ** 2 + (r + 1 / (2 * f["beta"])) ** 2


def apo_zero(d, lp, pair, f):
    c, r = (f["beta"] * x for x in sums(d, lp, *pair, f))
    return 1 - sig(c) + sig(r)


def apo_down(d, lp, pair, f):
    c, r = (f["beta"] * x for x in sums(d, lp, *pair, f))
    return sig(c) + 1 - sig(c - r)


def mean_logprobs(lp, pair):
    return [sum(lp[t] for t in tokens) / len(tokens) for tokens in pair]


def orpo(d, lp, pair, f):
    odds = [log(exp(a) / (1 - exp(a))) for a in mean_logprobs(lp, pair)]
    return -f["beta"] * logsig(odds[0] - odds[1])


def cpo(d, lp, pair, f):
    c, r = (sum(lp[t] for t in tokens) for tokens in pair)
    return dpo_of(f["beta"] * (c - r), f.get("label_smoothing", 0.0))


def simpo(d, lp, pair, f):
    c, r = mean_logprobs(lp, pair)
    return dpo_of(f["beta"] * (c - r) - f["gamma"], f.get("label_smoothing", 0.0))


def alphapo(d, lp, pair, f):
    c, r = ((1 - exp(a) ** -f["alpha"]) / f["alpha"] for a in mean_logprobs(lp, pair))
    return -logsig(f["beta"] * (c - r) - f["gamma"])


def aot(d, lp, f):
    """Sorted margins of the policy against sorted margins of the reference: a loss over the whole batch."""
    policy, reference = [], []
    for chosen, rejected in answers(d):
        policy.append(sum(lp[t] for t in chosen) - sum(lp[t] for t in rejected))
        reference.append(sum(d["ref"][t] for t in chosen) - sum(d["ref"][t] for t in rejected))
    matched = zip(sorted(policy), sorted(reference), strict=True)
    return [dpo_of(f["beta"] * (p - r), f.get("label_smoothing", 0.0)) for p, r in matched]


def aot_unpaired(d, lp, f):
    both = [sums(d, lp, chosen, rejected, f) for chosen, rejected in answers(d)]
    matched = zip(sorted(b[0] for b in both), sorted(b[1] for b in both), strict=True)
    return [dpo_of(f["beta"] * (c - r), f.get("label_smoothing", 0.0)) for c, r in matched]


def whole_pairwise(loss, d, lp, sg, f):
    """The scalar of a pairwise loss: mean over pairs, WPO's constant weights, supervised term."""
    pairs = answers(d)
    values = loss(d, lp, f) if loss in (aot, aot_unpaired) else [loss(d, lp, pair, f) for pair in pairs]
    total = 0.0
    for value, pair in zip(values, pairs, strict=True):
        weight = 1.0
        if f.get("weighted"):
            for tokens in pair:
                weight *= exp(sum(sg[t] - log(d["squares"][t]) for t in tokens) / len(tokens))
        total += weight * value
        total -= f.get("sft_coef", 0.0) * mean_logprobs(lp, pair)[0]
    return total / len(pairs)


def whole_kto(d, lp, sg, f):
    """KTO; sequences without a reward (None) are the mismatched answers."""
    tokens = {s: [t for t in range(len(lp)) if d["sequence"][t] == s] for s in range(len(d["group"]))}
    mismatched = [s for s in tokens if d["rewards"][s] is None]
    point = 0.0
    if f.get("reference_point", "kl") == "kl":
        constants = [sum(sg[t] - d["ref"][t] for t in tokens[s]) for s in mismatched]
        point = max(0.0, sum(constants) / len(constants))
    total, count = 0.0, 0
    for s in tokens:
        if d["rewards"][s] is None:
            continue
        count += 1
        x = sum(lp[t] - d["ref"][t] for t in tokens[s])
        if d["rewards"][s] > 0:
            total += f.get("desirable_weight", 1.0) * (1 - sig(f["beta"] * (x - point)))
        else:
            total += f.get("undesirable_weight", 1.0) * (1 - sig(f["beta"] * (point - x)))
    return total / count


def whole_implicit_prm(d, lp, sg, f):
    total = 0.0
    for s in range(len(d["group"])):
        q = sig(f["beta"] * sum(lp[t] - d["ref"][t] for t in range(len(lp)) if d["sequence"][t] == s))
        total -= log(q) if d["rewards"][s] > 0 else log(1 - q)
    return total / len(d["group"])


def whole_bradley_terry(d, lp, sg, f):
    """Here `lp` are the model's scores; the last token of each answer counts."""
    total, pairs = 0.0, answers(d)
    for chosen, rejected in pairs:
        c, r = lp[chosen[-1]], lp[rejected[-1]]
        rewards = [d["rewards"][d["sequence"][tokens[0]]] for tokens in (chosen, rejected)]
        total -= logsig(c - r - f.get("margin", 0.0) * (rewards[0] - rewards[1]))
        total += f.get("centre_coef", 0.0) * (c + r) ** 2
    return total / len(pairs)


def whole_value(d, lp, sg, f):
    """The critic's loss; `lp` are the new values."""
    total, clip = 0.0, f.get("clip", 0.5)

    def penalty(x):
        huber = f.get("huber", 0.0)
        return x * x / 2 if not huber or abs(x) <= huber else huber * (abs(x) - huber / 2)

    for v, old, goal in zip(lp, d["old_values"], d["returns"], strict=True):
        moved = min(max(v, old - clip), old + clip)
        total += max(penalty(v - goal), penalty(moved - goal)) if clip else penalty(v - goal)
    return total / len(lp)

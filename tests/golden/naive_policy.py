"""Policy losses as naive loops over plain Python floats, to be checked against the papers by reading.

`lp` are the current logprobs as far as gradient flows through them, `sg` the same numbers where it doesn't. So a
difference quotient in `lp` alone is the gradient that the torch code must have.
"""

from math import exp, expm1, log


def clip(x, low, high):
    return min(max(x, low), high)


def sign(x):
    return (x > 0) - (x < 0)


def old_of(d, sg, f):
    """Logprobs in the ratio's denominator."""
    if f.get("bypass"):
        return d["sampler"]
    return d.get("old", sg)


def proximal_of(d, sg, f):
    """Logprobs held against the sampler's."""
    if f.get("bypass"):
        return sg
    return d.get("old", sg)


def sequence_tokens(d, tokens):
    """{sequence: its tokens among `tokens`}, only sequences that have any."""
    out = {}
    for t in tokens:
        out.setdefault(d["sequence"][t], []).append(t)
    return out


# --- which tokens stay -------------------------------------------------------------------------------------------


def level_weight(level, logs, own, t):
    if level == "token":
        x = logs[t]
    elif level == "sequence":
        x = sum(logs[u] for u in own[t])
    else:
        x = sum(logs[u] for u in own[t]) / len(own[t])
    return exp(clip(x, -20, 20))


CORRECTIONS = {
    "token_tis": ("token", 0.0, 2.0, False),
    "sequence_tis": ("sequence", 0.0, 2.0, False),
    "geometric_tis": ("geometric", 0.0, 2.0, False),
    "token_mis": ("token", 0.5, 2.0, True),
    "icepop": ("token", 0.5, 5.0, True),
    "sequence_mis": ("sequence", 0.5, 2.0, True),
    "geometric_mis": ("geometric", 0.999, 1.001, True),
}
REJECTIONS = {"token": (0.5, 2.0), "sequence": (0.5, 2.0), "geometric": (0.999, 1.001), "outlier": (1e-4, 100.0)}


def bounds(f, prefix, low, high):
    given_low, given_high = f.get(f"{prefix}_low"), f.get(f"{prefix}_high")
    return (low if given_low is None else given_low), (high if given_high is None else given_high)


def binary_kl(p, q):
    return p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))


def rejected_by(name, d, logs, proximal, own, t, f):
    if name in ("token", "sequence", "geometric"):
        low, high = bounds(f, "rejection", *REJECTIONS[name])
        return not low <= level_weight(name, logs, own, t) <= high
    if name == "outlier":
        low, high = bounds(f, "rejection", *REJECTIONS[name])
        return any(not low <= exp(logs[u]) <= high for u in own[t])
    high = f.get("rejection_high")
    if name == "kpop":
        p, q = exp(proximal[t]), exp(d["sampler"][t])
        return max(binary_kl(p, q), binary_kl(q, p)) > (2.0 if high is None else high)
    high = 0.01 if high is None else high
    scope, _, kind = name.rpartition("_")

    def k(u):
        return logs[u] ** 2 / 2 if kind == "k2" else exp(logs[u]) - 1 - logs[u]

    if scope == "token":
        return k(t) > high
    many = [k(u) for u in own[t]]
    return {"sequence_sum": sum(many), "sequence_mean": sum(many) / len(many), "sequence_max": max(many)}[scope] > high


def m2po_kept(logs, tokens, threshold):
    ranked = sorted(tokens, key=lambda t: logs[t] ** 2)
    count = 1
    for n in range(1, len(ranked) + 1):
        if sum(logs[t] ** 2 for t in ranked[:n]) / n <= threshold:
            count = n
    return set(ranked[:count])


def kept_tokens(d, sg, f):
    tokens = range(len(sg))
    proximal = proximal_of(d, sg, f)
    logs = [proximal[t] - d["sampler"][t] for t in tokens]
    own = {t: [u for u in tokens if d["sequence"][u] == d["sequence"][t]] for t in tokens}
    out = []
    correction, rejection = f.get("correction", "none"), f.get("rejection", "none")
    m2po = m2po_kept(logs, tokens, f.get("rejection_high", 0.04)) if rejection == "m2po" else None
    for t in tokens:
        drop = False
        if correction != "none" and CORRECTIONS[correction][3]:
            level, low, high, _ = CORRECTIONS[correction]
            low, high = bounds(f, "correction", low, high)
            drop |= not low <= level_weight(level, logs, own, t) <= high
        if m2po is not None:
            drop |= t not in m2po
        elif rejection != "none":
            drop |= rejected_by(rejection, d, logs, proximal, own, t, f)
        if f.get("veto"):
            drop |= any(exp(logs[u]) < f["veto"] for u in own[t])
        if f.get("opsm_delta"):
            drift = sum(d["sampler"][u] - sg[u] for u in own[t]) / len(own[t])
            drop |= d["advantages"][t] < 0 and drift > f["opsm_delta"]
        if not drop:
            out.append(t)
    return out


def correction_weights(d, sg, kept, f):
    """{token: weight}."""
    correction = f.get("correction", "none")
    if correction == "none":
        return dict.fromkeys(kept, 1.0)
    level, low, high, masks = CORRECTIONS[correction]
    low, high = bounds(f, "correction", low, high)
    proximal = proximal_of(d, sg, f)
    logs = {t: proximal[t] - d["sampler"][t] for t in kept}
    own = {t: [u for u in kept if d["sequence"][u] == d["sequence"][t]] for t in kept}
    weights = {t: level_weight(level, logs, own, t) for t in kept}
    if not masks:
        weights = {t: clip(w, low, high) for t, w in weights.items()}
    if f.get("correction_normalize"):
        if level == "token":
            mean = sum(weights.values()) / len(weights)
        else:
            firsts = [tokens[0] for tokens in sequence_tokens(d, kept).values()]
            mean = sum(weights[t] for t in firsts) / len(firsts)
        weights = {t: w / mean for t, w in weights.items()}
    return weights


# --- denominators ------------------------------------------------------------------------------------------------


def denominators(d, kept, f):
    """{token: what its loss is divided by}."""
    counted = kept if f.get("denominator") == "kept" else list(range(len(d["sequence"])))
    per_sequence = {s: len(ts) for s, ts in sequence_tokens(d, counted).items()}
    per_group = {}
    for t in counted:
        g = d["group"][d["sequence"][t]]
        per_group[g] = per_group.get(g, 0) + 1
    if f.get("denominator") == "kept":
        sequences, groups = len(per_sequence), len(per_group)
    else:
        sequences, groups = len(d["group"]), len(set(d["group"]))
    mode = f.get("aggregate", "token_mean")
    out = {}
    for t in kept:
        s = d["sequence"][t]
        out[t] = {
            "token_mean": len(counted),
            "sequence_mean": per_sequence[s] * sequences,
            "sequence_sum": sequences,
            "fixed_length": f.get("fixed_length", 0) * sequences,
            "prompt_mean": per_group[d["group"][s]] * groups,
            "token_sum": 1,
        }[mode]
    return out


# --- surrogates: {token: loss} -----------------------------------------------------------------------------------


def bounded(x, f, default=20.0):
    limit = f.get("log_ratio_bound", default)
    return clip(x, -limit, limit) if limit else x


def clipped(ratio, a, low, high, dual=0.0, delta=0.0):
    loss = max(-a * (min(ratio, delta) if delta else ratio), -a * clip(ratio, 1 - low, 1 + high))
    return min(loss, -a * dual) if dual and a < 0 else loss


def ppo_clip(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    out = {}
    for t in kept:
        ratio = exp(bounded(lp[t] - old[t], f))
        low, high = f.get("clip_low", 0.2), f.get("clip_high", 0.2)
        out[t] = clipped(ratio, d["advantages"][t], low, high, f.get("dual_clip", 0.0), f.get("delta", 0.0))
    return out


def reinforce(d, lp, sg, kept, f):
    return {t: -d["advantages"][t] * lp[t] for t in kept}


def importance_sampling(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    return {t: -d["advantages"][t] * exp(bounded(lp[t] - old[t], f)) for t in kept}


def cispo(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    out = {}
    for t in kept:
        weight = clip(exp(bounded(sg[t] - old[t], f)), 1 - f.get("clip_low", 1.0), 1 + f.get("clip_high", 4.0))
        out[t] = -weight * d["advantages"][t] * lp[t]
    return out


def sapo(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    out = {}
    for t in kept:
        a = d["advantages"][t]
        tau = f.get("tau_positive", 1.0) if a > 0 else f.get("tau_negative", 1.05)
        ratio = exp(bounded(lp[t] - old[t], f))
        out[t] = -4 / tau / (1 + exp(-tau * (ratio - 1))) * a
    return out


def dppo(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    low, high = f.get("clip_low", 0.2), f.get("clip_high", 0.2)
    out = {}
    for t in kept:
        a, p, p_old = d["advantages"][t], exp(sg[t]), exp(old[t])
        if f.get("divergence", "tv") == "tv":
            inside = p - p_old <= high if a > 0 else p - p_old >= -low
        else:
            kl = p_old * (old[t] - sg[t]) + (1 - p_old) * log((1 - p_old + 1e-8) / (1 - p + 1e-8))
            inside = (kl <= high or p <= p_old) if a > 0 else (kl <= low or p >= p_old)
        weight = min(exp(clip(sg[t] - old[t], -20, 20)), f.get("ratio_cap", 20.0))
        out[t] = -a * weight * lp[t] if inside else 0.0
        out[t] += f.get("drift_coef", 0.0) * (lp[t] - old[t]) ** 2
    return out


def topr(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    out = {}
    for t in kept:
        a, s = d["advantages"][t], d["sequence"][t]
        positive = d["rewards"][s] > 0 if f.get("positive_by") == "reward" else a > 0
        own = [t] if f.get("level") == "token" else sequence_tokens(d, kept)[s]
        taper = clip(exp(sum(sg[u] - old[u] for u in own)), 0.0, 1.0)
        out[t] = -(1.0 if positive else taper) * a * lp[t]
    return out


def dro(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    beta = f.get("beta", 0.05)
    return {t: -(d["advantages"][t] * lp[t] - beta / 2 * (lp[t] - old[t]) ** 2) for t in kept}


def gspo(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    low, high = f.get("clip_low", 3e-4), f.get("clip_high", 4e-4)
    out = {}
    for own in sequence_tokens(d, kept).values():
        with_gradient = sum(lp[u] - old[u] for u in own) / len(own)
        constant = sum(sg[u] - old[u] for u in own) / len(own)
        mean_a = sum(d["advantages"][u] for u in own) / len(own)
        for t in own:
            logs = constant + lp[t] - sg[t] if f.get("form") == "token" else with_gradient
            a = mean_a if f.get("mean_advantage") else d["advantages"][t]
            out[t] = clipped(exp(bounded(logs, f)), a, low, high)
    return out


def gmpo(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    low, high = f.get("clip_low", 0.4), f.get("clip_high", 0.4)
    out = {}
    for own in sequence_tokens(d, kept).values():
        total = 0.0
        for t in own:
            s, x = sign(d["advantages"][t]), bounded(lp[t] - old[t], f)
            total += s * min(s * x, s * clip(x, -low, high))
        mean_a = sum(d["advantages"][t] for t in own) / len(own)
        for t in own:
            out[t] = -exp(total / len(own)) * mean_a
    return out


def vespo(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    out = {}
    for own in sequence_tokens(d, kept).values():
        w = exp(clip(sum(clip(sg[u] - old[u], -20, 20) for u in own), log(1e-8), 20))
        for t in own:
            a = d["advantages"][t]
            k, lam = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
            out[t] = -(w**k * exp(lam * (1 - w))) * a * lp[t]
    return out


def covariances(d, sg, kept):
    mean_a = sum(d["advantages"][t] for t in kept) / len(kept)
    mean_lp = sum(sg[t] for t in kept) / len(kept)
    return {t: (d["advantages"][t] - mean_a) * (sg[t] - mean_lp) for t in kept}


def kl_cov(d, lp, sg, kept, f):
    old = old_of(d, sg, f)
    cov = covariances(d, sg, kept)
    top = sorted(kept, key=lambda t: -cov[t])[: max(1, int(f.get("share", 2e-4) * len(kept)))]
    out = {}
    for t in kept:
        out[t] = -d["advantages"][t] * exp(bounded(lp[t] - old[t], f))
        if t in top:
            out[t] += f.get("penalty", 1.0) * abs(lp[t] - old[t])
    return out


def clip_cov_candidates(d, sg, kept, f):
    """Tokens among which Clip-Cov draws."""
    old = old_of(d, sg, f)
    cov = covariances(d, sg, kept)
    out = []
    for t in kept:
        a, ratio = d["advantages"][t], exp(bounded(sg[t] - old[t], f))
        was_clipped = (a > 0 and ratio > 1 + f.get("clip_high", 0.2)) or (a < 0 and ratio < 1 - f.get("clip_low", 0.2))
        if f.get("cov_low", 1.0) < cov[t] < f.get("cov_high", 5.0) and not was_clipped:
            out.append(t)
    return out


def clip_cov(d, lp, sg, kept, f):
    """With a share so large that every candidate is taken, so that no draw is left to chance."""
    out = ppo_clip(d, lp, sg, kept, f)
    for t in clip_cov_candidates(d, sg, kept, f):
        out[t] = 0.0
    return out


def nll(d, lp, sg, kept, f):
    return {t: -lp[t] for t in kept}


def dft(d, lp, sg, kept, f):
    return {t: -exp(sg[t]) * lp[t] for t in kept}


# --- the whole loss ----------------------------------------------------------------------------------------------


def kl_value(x, kind):
    return {"k1": x, "abs": abs(x), "k2": x * x / 2, "k3": expm1(-x) + x}[kind]


def kl_estimate(lp, sg, ref, kind, clamp="k3"):
    x, frozen = lp - ref, sg - ref

    def value(y, base):
        if base == "k3" and clamp != "none":
            return clip(kl_value(clip(y, -20, 20), "k3"), -10, 10)
        out = kl_value(y, base)
        return clip(out, -10, 10) if clamp == "all" else out

    if kind.endswith("+"):
        return x * x / 2 - frozen * frozen / 2 + value(frozen, kind[:-1])
    return value(x, kind)


def geometric_mean_weights(d, kept, weights):
    out = {}
    for own in sequence_tokens(d, kept).values():
        for t in own:
            out[t] = exp(sum(log(weights[u]) for u in own) / len(own))
    return out


def top_entropy_tokens(d, kept, share):
    """Tokens at or above the (1 - share) quantile with linear interpolation."""
    ordered = sorted(d["entropy"][t] for t in kept)
    position = (1 - share) * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    threshold = ordered[below] + (position - below) * (ordered[above] - ordered[below])
    return {t for t in kept if d["entropy"][t] >= threshold - 1e-12}


def whole_loss(surrogate, d, lp, sg, f):
    """The scalar that a policy loss with fields `f` must give."""
    kept = kept_tokens(d, sg, f)
    losses = surrogate(d, lp, sg, kept, f)
    weights = correction_weights(d, sg, kept, f)
    if surrogate is gmpo:
        weights = geometric_mean_weights(d, kept, weights)
    per = denominators(d, kept, f)
    high = top_entropy_tokens(d, kept, f["top_entropy"]) if "top_entropy" in f else set(kept)
    total = 0.0
    for t in kept:
        if t in high:
            total += weights[t] * losses[t] / per[t]
        if f.get("kl", "none") != "none":
            kl = kl_estimate(lp[t], sg[t], d["ref"][t], f["kl"], f.get("kl_clamp", "k3"))
            if f.get("kl_unbiased"):
                kl *= exp(lp[t] - old_of(d, sg, f)[t])
            total += f["kl_coef"] * kl / per[t]
        if f.get("entropy_coef"):
            total -= f["entropy_coef"] * d["entropy"][t] / per[t]
    if f.get("positive_nll_coef"):
        right = [t for t in kept if d["rewards"][d["sequence"][t]] > 0]
        total += f["positive_nll_coef"] * sum(-lp[t] for t in right) / len(right)
    return total


def gradient(function, lp):
    """Central differences of `function` at `lp`."""
    h = 1e-5
    out = []
    for t in range(len(lp)):
        up, down = list(lp), list(lp)
        up[t] += h
        down[t] -= h
        out.append((function(up) - function(down)) / (2 * h))
    return out

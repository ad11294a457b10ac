"""Where the time of requests goes: until they first run, until their first token, and between tokens.

Of the time between tokens, what was spent in steps is counted in parts, each step once for every token that a
request decodes in it; what is left over is waiting: for a batch in flight, for the host, after a preemption. Steps
that compute prompts beside the decodes are longer by that, which is shown apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.serving.engine.replica import Replica
from fabrictwin.serving.predict import Prediction
from fabrictwin.serving.report.bench import latencies
from fabrictwin.serving.step.parts import Parts

MEANING = {
    "linear": "products with weights, norms",
    "attention": "attention",
    "experts": "experts",
    "launches": "launches by the host",
    "tensor_parallel": "all-reduces of TP",
    "expert_parallel": "tokens to experts and back",
    "pipeline": "sends to the next stage",
    "ends": "embedding, logits, sampling",
    "waiting": "between steps: the host, batches in flight",
}


@record
class TokenTime:
    """Means in seconds.

    Attributes:
        queue_s: From a request's sending until it first runs.
        prefill_s: From then to its first token.
        token_s: Between tokens.
        parts_s: What of it went where, by the names of `MEANING`; parts that are nothing are left out.
        mixed_share: Share of the time in steps that was spent in steps with prompts.
    """

    queue_s: float
    prefill_s: float
    token_s: float
    parts_s: dict[str, float]
    mixed_share: float


def _together(replicas: Iterable[Replica], *, mixed: bool) -> dict[str, float]:
    costs = {id(replica.cost): replica.cost for replica in replicas}
    spent = [cost.decode_parts(mixed=mixed) for cost in costs.values()]
    return {name: sum(getattr(one, name) for one in spent) / 1e6 for name in Parts.__slots__}


def token_time(found: Prediction) -> TokenTime:
    """Return where the time of a run's requests went."""
    served, times = found.served, latencies(found.served)
    first: dict[int, int] = {}
    for replica in found.replicas:
        for number, at_ps in replica.admitted_ps.items():
            first[number] = min(at_ps, first.get(number, at_ps))
    admitted = np.array([first[number] for number in range(len(served.demand))])
    queue = (admitted - served.sent_ps) / PS_PER_S
    tokens = int((times.outputs - 1).sum())
    between = float((times.e2el - times.ttft).sum())
    if not tokens:
        return TokenTime(float(queue.mean()), float((times.ttft - queue).mean()), 0.0, {}, 0.0)
    alone, mixed = (_together(found.replicas, mixed=flag) for flag in (False, True))
    parts = {name: alone[name] + mixed[name] for name in alone}
    steps = sum(parts.values())
    parts["waiting"] = max(0.0, between - steps)
    return TokenTime(
        float(queue.mean()),
        float((times.ttft - queue).mean()),
        between / tokens,
        {name: value / tokens for name, value in parts.items() if value},
        sum(mixed.values()) / steps if steps else 0.0,
    )

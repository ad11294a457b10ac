"""Corrections of network adapters fitted to perftest between two hosts: latency, and rates of messages.

A latency is off by what this machine's processors, PCIe and adapters take beside the catalog's. Small messages in
a row show the adapter's rate: rows count that the rate decides, which the twin is asked. Rates of bytes are no
constant: what falls short there is a setting or a fault (MTU, width of PCIe, memory of the other socket), which
`doctor` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage
from fabrictwin.base.units import PS_PER_NS, PS_PER_S, PS_PER_US
from fabrictwin.calibration.fitting import Fitted, Prior, fit
from fabrictwin.calibration.perftest_tables import PerftestRows
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.packet.packet_options import options_of
from fabrictwin.tools.perftest.perftest_loops import Bandwidth, play
from fabrictwin.tools.perftest.perftest_options import PerftestOptions
from fabrictwin.twin.routed_twin import make_twin

# machines differ from the catalog's by a tenth bare (docs/perftest.md), by 0.9 to 5 us in containers
LATENCY = Prior("adapters.latency_ns", 0.0, 500.0, factor=False)
MESSAGE_RATE = Prior("adapters.message_rate", 1.0, 0.3)
BOUNDS = {LATENCY.name: (-10_000.0, 100_000.0), MESSAGE_RATE.name: (0.1, 10.0)}  # of `AdapterCorrections`
LARGEST = 65536  # bytes of a latency that the way decides, and not the rate
ASKED, DECIDED = 0.1, 0.05  # a rate so much lower, and how much longer messages take that it decides
ITERATIONS = {"lat": 5, "bw": 300}  # an idle fabric repeats itself
Times = Callable[[float, float], F64]  # us a message of each row, with a latency in ns and a factor on rates


def fit_adapters(spec: Spec, tables: Sequence[PerftestRows], stage: Stage) -> list[Fitted]:
    """Return corrections from tables of perftest between the spec's first two hosts. Raises ConfigError."""
    found = []
    latency = [(one, row) for one in tables if one.latency for row in one.rows if row[0] <= LARGEST]
    if latency:
        found.append(_fit(spec, latency, LATENCY, stage))
    rates = [(one, row) for one in tables if not one.latency for row in one.rows]
    if rates:
        times = _times(spec, rates, stage)
        slower = times(0.0, math.exp(-ASKED)) / times(0.0, 1.0)
        decided = [row for row, ratio in zip(rates, slower.tolist(), strict=True) if ratio > 1 + DECIDED]
        if decided:
            found.append(_fit(spec, decided, MESSAGE_RATE, stage))
    if not found:
        raise ConfigError(f"got no latency up to {LARGEST} B, and no bandwidth that the message rate decides")
    return found


def _fit(spec: Spec, rows: Sequence[tuple[PerftestRows, tuple[int, float]]], prior: Prior, stage: Stage) -> Fitted:
    times = _times(spec, rows, stage)
    measured = np.log([time for _, (_, time) in rows])

    def logs(at: F64) -> F64:
        value = prior.at(float(at[0]))
        found = times(value, 1.0) if prior is LATENCY else times(0.0, value)
        return np.asarray(np.log(found) - measured)

    names = ", ".join(dict.fromkeys(one.test for one, _ in rows))
    (found,) = fit(logs, [prior], len(rows), f"perftest: {names}")
    least, most = BOUNDS[prior.name]
    if not least <= found.after <= most:
        raise ConfigError(
            f"got {found.after:.4g} for {prior.name} from {names}, expected {least:g} to {most:g}: "
            "no adapter is that far from the catalog's, so that something else is slow (fabrictwin doctor)"
        )
    return found


def _times(spec: Spec, rows: Sequence[tuple[PerftestRows, tuple[int, float]]], stage: Stage) -> Times:
    """Return what plays the rows on the spec's cluster. Raises ConfigError where it has fewer than two hosts."""
    twin = make_twin(spec, build(spec.cluster, spec=spec))
    plain = twin.fabric
    if len(plain.host_names) < 2:
        raise ConfigError("got a table of perftest and one host, expected two in the spec")
    first, second = plain.host_names[:2]
    packet = options_of(spec.run.packet, plain.technology, spec.run.seed, spec.qos)
    asked = [
        PerftestOptions(
            test=one.test,
            source=first,
            target=second,
            size=size if "atomic" not in one.test else None,
            iterations=ITERATIONS[one.test.rpartition("_")[2]],
            **dict(one.settings),  # type: ignore[arg-type]
        )
        for one, (size, _) in rows
    ]

    def times(latency_ns: float, message_rate: float) -> F64:
        twin.fabric = plain
        twin.correct(latency_ps=round(latency_ns * PS_PER_NS), message_rate=message_rate)
        found = []
        for number, options in enumerate(asked):
            stage("perftest with other adapters", number / len(asked))
            (row,) = play(twin, options, packet).rows
            if isinstance(row, Bandwidth):
                found.append(PS_PER_S / row.messages_per_s / PS_PER_US)
            else:
                found.append(row.typical / PS_PER_US)
        return np.array(found)

    return times

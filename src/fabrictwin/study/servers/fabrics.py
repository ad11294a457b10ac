"""One server on several fabrics: what its benchmark gives on each, and what a token costs there.

Hosts, layout and requests are the same. Without RDMA, NCCL goes over sockets; what needs RDMA is refused there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.catalog import FabricPreset
from fabrictwin.catalog.price_book import PriceBook
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Origin, Spec, read_spec
from fabrictwin.report.page import Axis, Series, bars, lines, table, tile
from fabrictwin.serving.config.layout import DEEPEP
from fabrictwin.serving.config.neighbours import Beside, read_neighbours
from fabrictwin.serving.config.server import serving_section
from fabrictwin.serving.predict import Prediction, predict
from fabrictwin.serving.report.bench import latencies
from fabrictwin.serving.report.server import headline
from fabrictwin.serving.report.token_time import token_time
from fabrictwin.study.compare.fabrics import preset, with_fabric
from fabrictwin.study.compare.without_rdma import WITHOUT_RDMA
from fabrictwin.study.cost.network_sizing import needed
from fabrictwin.study.servers.token_cost import Prices, TokenCost
from fabrictwin.study.study_page import study_page

BETWEEN_GPUS = ("tensor_parallel", "expert_parallel", "pipeline")


@record
class OnFabric:
    """A server on one fabric.

    Attributes:
        name: Name of the preset.
        fields: Fields of the benchmark's result, without each request's.
        between: Share of the time between tokens that goes to messages among GPUs.
        cost: What a token costs.
        ttft_ms: Times to first token, sorted.
        neighbours: Jobs and servers beside it, alone and beside.
    """

    name: str
    fields: dict[str, Any]
    between: float
    cost: TokenCost
    ttft_ms: tuple[float, ...]
    neighbours: tuple[Beside, ...] = ()


@record
class ServerComparison:
    """A server on all fabrics, and why some were refused."""

    name: str
    seed: int
    server: tuple[str, ...]
    fabrics: tuple[OnFabric, ...]
    refused: Mapping[str, str]


def compare_server(
    spec: Spec,
    names: Sequence[str],
    *,
    book: PriceBook,
    own: Mapping[str, FabricPreset] | None = None,
    years: float = 4.0,
    stage: Stage = silent,
) -> ServerComparison:
    """Return a spec's server on each fabric. Raises ConfigError, also where all refuse it."""
    if not names or len(set(names)) != len(names):
        raise ConfigError("got no fabric, or one twice, expected each once", key="--fabrics")
    beside = read_neighbours(spec, serving_section(spec))
    found, refused = [], {}
    said: list[str] = []
    for place, name in enumerate(names):
        fabric = preset(name, own or {})
        stage(name, place / len(names))
        try:
            there = _on(spec, fabric)
            answer = predict(there, neighbours=[_joined(one, fabric) for one in beside])
        except ConfigError as error:
            refused[name] = str(error)
            continue
        said = headline(replace(answer, neighbours=()))
        found.append(_answer(name, there, answer, book, years))
    if not found:
        raise ConfigError("; ".join(f"{name}: {why}" for name, why in refused.items()), key="--fabrics")
    return ServerComparison(spec.name, serving_section(spec).benchmark.seed, tuple(said), tuple(found), refused)


def _on(spec: Spec, fabric: FabricPreset) -> Spec:
    """Return the spec on a fabric. Raises ConfigError."""
    serving = serving_section(spec)
    if fabric.transport == "tcp" and (serving.disaggregated is not None or serving.all2all_backend in DEEPEP):
        what = "KV transfers" if serving.disaggregated is not None else serving.all2all_backend
        raise spec.error("workload.serving", f"got {what} on {fabric.name}: it needs RDMA")
    return _joined(spec, fabric)


def _joined(spec: Spec, fabric: FabricPreset) -> Spec:
    """Return a job's or server's spec on a fabric, NCCL without RDMA where that has none. Raises ConfigError."""
    there = with_fabric(spec, fabric)
    if fabric.transport != "tcp":
        return there
    data = there.to_dict()
    data["nccl"] = {**(data.get("nccl") or {}), **WITHOUT_RDMA}
    return read_spec(data, Origin(spec.folder, spec.path))


def _answer(name: str, spec: Spec, answer: Prediction, book: PriceBook, years: float) -> OnFabric:
    network = getattr(spec.cluster, "network", None)
    over = 1.0 if network is None else network.topology.oversubscription or 1.0
    bill = needed(build(spec.cluster, spec=spec), book, over)
    spent = token_time(answer)
    between = sum(spent.parts_s.get(part, 0.0) for part in BETWEEN_GPUS)
    rate = float(answer.fields["output_throughput"])
    fields = {key: value for key, value in answer.fields.items() if isinstance(value, int | float)}
    return OnFabric(
        name,
        fields,
        between / spent.token_s if spent.token_s else 0.0,
        Prices(bill, book, years).token(gpus=answer.gpus, tokens_per_s=rate),
        tuple(sorted((1000 * latencies(answer.served).ttft).tolist())),
        answer.neighbours,
    )


ROWS = (
    ("TTFT, mean", "mean_ttft_ms", ".1f", " ms"),
    ("TTFT, median", "median_ttft_ms", ".1f", " ms"),
    ("TPOT, mean", "mean_tpot_ms", ".2f", " ms"),
    ("output tokens/s", "output_throughput", ",.1f", ""),
    ("requests/s", "request_throughput", ".2f", ""),
)


def _rows(found: ServerComparison) -> list[tuple[str, list[tuple[str, float]]]]:
    """Return what is said of each fabric: text and number, row by row."""
    rows = [
        (title, [(f"{one.fields[key]:{form}}{unit}", float(one.fields[key])) for one in found.fabrics])
        for title, key, form, unit in ROWS
        if all(key in one.fields for one in found.fabrics)
    ]
    for place, one in enumerate(found.fabrics[0].neighbours):
        times = [fabric.neighbours[place].beside_ms for fabric in found.fabrics]
        rows.append((f"{one.name}: {one.what}", [(f"{time:,.2f} ms", time) for time in times]))
    rows.append(("messages among GPUs", [(f"{one.between:.0%}", one.between) for one in found.fabrics]))
    money = found.fabrics[0].cost.currency
    rows.append(
        (
            "a million tokens",
            [(f"{one.cost.per_million:.3g} {money}", one.cost.per_million) for one in found.fabrics],
        )
    )
    rows.append(("energy of a token", [(f"{one.cost.joules:.3g} J", one.cost.joules) for one in found.fabrics]))
    return rows


def verdict(found: ServerComparison) -> str:
    """Return in a sentence which fabric is fastest, by how much, and which is cheapest."""
    fast = min(found.fabrics, key=lambda one: float(one.fields["mean_tpot_ms"]))
    slow = max(found.fabrics, key=lambda one: float(one.fields["mean_tpot_ms"]))
    cheap = min(found.fabrics, key=lambda one: one.cost.per_million)
    ratio = float(slow.fields["mean_tpot_ms"]) / float(fast.fields["mean_tpot_ms"])
    if ratio < 1.02:
        said = "The fabric makes no difference to this server: times per token lie within 2%"
    else:
        said = f"{fast.name} has the shortest time per token, {slow.name} takes {ratio:.2f} times as long"
    return f"{said}; tokens are cheapest on {cheap.name}."


def comparison_text(found: ServerComparison) -> str:
    """Return the comparison for a terminal."""
    names = [one.name for one in found.fabrics]
    rows = [(title, [text for text, _ in cells]) for title, cells in _rows(found)]
    first = max(len(title) for title, _ in rows)
    widths = [max(len(name), *(len(cells[i]) for _, cells in rows)) for i, name in enumerate(names)]
    lines_ = [found.name, *(f"  {line}" for line in found.server[:1]), ""]
    for title, cells in [("", names), *rows]:
        lines_.append(
            f"  {title:<{first}}  "
            + "  ".join(f"{cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))
        )
    lines_ += ["", f"  {verdict(found)}", *(f"  refused on {name}: {why}" for name, why in found.refused.items())]
    return "\n".join([*lines_, ""])


def comparison_data(found: ServerComparison) -> dict[str, Any]:
    """Return the comparison as plain data."""
    return {
        "schema": 1,
        "name": found.name,
        "server": list(found.server),
        "fabrics": [
            {
                "name": one.name,
                **one.fields,
                "share_between_gpus": one.between,
                "currency": one.cost.currency,
                "per_million_tokens": one.cost.per_million,
                "joules_per_token": one.cost.joules,
                **({"neighbours": [asdict(other) for other in one.neighbours]} if one.neighbours else {}),
            }
            for one in found.fabrics
        ],
        "refused": dict(found.refused),
        "verdict": verdict(found),
    }


def comparison_page(found: ServerComparison) -> str:
    """Return the comparison as a page."""
    fast = min(found.fabrics, key=lambda one: float(one.fields["mean_tpot_ms"]))
    cheap = min(found.fabrics, key=lambda one: one.cost.per_million)
    frugal = min(found.fabrics, key=lambda one: one.cost.joules)
    rows = _rows(found)

    def share(one: OnFabric) -> tuple[tuple[float, float], ...]:
        every = max(1, len(one.ttft_ms) // 60)
        return tuple((one.ttft_ms[i], 100 * (i + 1) / len(one.ttft_ms)) for i in range(0, len(one.ttft_ms), every))

    return study_page(
        "server_compare.html.j2",
        name=found.name,
        subject="fabrics",
        finding=f"a server on {len(found.fabrics)} fabrics",
        seed=found.seed,
        said=[*found.server[:1], verdict(found)],
        refused=[f"Refused on {name}: {why}" for name, why in found.refused.items()],
        tiles=[
            tile("Shortest time per token", f"{fast.fields['mean_tpot_ms']:.2f} ms", fast.name),
            tile("Its time to first token", f"{fast.fields['mean_ttft_ms']:.4g} ms", "in the mean"),
            tile(
                "Cheapest tokens",
                f"{cheap.cost.per_million:.3g} {cheap.cost.currency}",
                f"a million, {cheap.name}",
            ),
            tile("Energy of a token", f"{frugal.cost.joules:.3g} J", frugal.name),
        ],
        table=table(
            ["fabric", *(title for title, _ in rows)],
            [[one.name, *(cells[i] for _, cells in rows)] for i, one in enumerate(found.fabrics)],
        ),
        tpot=bars(
            [
                (one.name, one.fields["mean_tpot_ms"], f"{one.fields['mean_tpot_ms']:.2f} ms")
                for one in found.fabrics
            ],
            label="time per output token by fabric",
        ),
        between=bars(
            [(one.name, one.between, f"{one.between:.0%}") for one in found.fabrics],
            label="share of the time between tokens in messages among GPUs",
        ),
        ttft=lines(
            [Series(one.name, share(one)) for one in found.fabrics],
            Axis("time to first token, ms"),
            Axis("requests below, %", zero=True),
            label="distribution of the time to first token by fabric",
        ),
    )

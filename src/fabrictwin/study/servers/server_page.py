"""What a server's benchmark found, as a page with plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fabrictwin.base.units import PS_PER_S
from fabrictwin.report.page import Axis, Cell, Chart, Series, bars, histogram, lines, table, tile
from fabrictwin.serving.engine.replica import STEP_FIELDS, Replica
from fabrictwin.serving.predict import Prediction
from fabrictwin.serving.report.bench import Floats, latencies
from fabrictwin.serving.report.sent_bytes import sent_per_token
from fabrictwin.serving.report.server import headline, range_lines
from fabrictwin.serving.report.token_time import MEANING, TokenTime, token_time
from fabrictwin.study.servers.gains import Gain
from fabrictwin.study.servers.token_cost import TokenCost
from fabrictwin.study.study_page import study_page

INTERVALS = 100
LATENCIES = (
    ("Time to first token", "ttft"),
    ("Time per output token", "tpot"),
    ("Between tokens", "itl"),
    ("End to end", "e2el"),
)


def server_page(
    found: Prediction, *, name: str, seed: int, cost: TokenCost, before: Gain, gains: Sequence[Gain]
) -> str:
    """Return the page as text: `before` is the server as it is, `gains` are changes that were run."""
    fields, spent = found.fields, token_time(found)
    rate = fields["output_throughput"]
    times = latencies(found.served)
    over = _Intervals(found.replicas, sent_per_token(found.server.served))
    values = {"ttft": times.ttft, "tpot": times.tpot[times.outputs > 1], "itl": times.gaps, "e2el": times.e2el}
    return study_page(
        "server.html.j2",
        name=name,
        subject="server",
        finding="an inference server",
        seed=seed,
        said=headline(found),
        ranges=range_lines(found),
        tiles=[
            tile("Time to first token", f"{1000 * times.ttft.mean():.4g} ms", _p99(times.ttft)),
            tile("Time per output token", f"{fields['mean_tpot_ms']:.4g} ms", _p99(values["tpot"])),
            tile("Output tokens", f"{rate / found.gpus:.4g} /s/GPU", f"{rate:,.0f} a second on {found.gpus} GPUs"),
            tile(
                "A million tokens",
                f"{cost.per_million:.3g} {cost.currency}",
                f"{cost.joules:.3g} J a token, {cost.gpu_hour:.2f} {cost.currency} a GPU and hour",
            ),
        ],
        first=_first_token(spent),
        between=_between_tokens(spent),
        beside=f"{spent.mixed_share:.0%}",
        charts_over_time=over.charts(),
        latencies=[(title, _distribution(values[key], title)) for title, key in LATENCIES],
        gains=table(
            ["change", "GPUs", "TTFT", "TPOT", "end to end", "tokens/s", "tokens/s/GPU"],
            [_row(before, before), *(_row(one, before) for one in gains)],
        ),
    )


def _p99(seconds: Floats) -> str:
    return f"p99 {1000 * np.percentile(seconds, 99):.4g} ms" if len(seconds) else ""


def _first_token(spent: TokenTime) -> Chart:
    rows = [("until it first runs", spent.queue_s), ("its prompt", spent.prefill_s)]
    return bars(
        [(what, value, f"{1000 * value:.4g} ms") for what, value in rows],
        label="time to first token, by part",
    )


def _between_tokens(spent: TokenTime) -> Chart:
    rows = sorted(spent.parts_s.items(), key=lambda row: -row[1])
    return bars(
        [
            (MEANING[what], value, f"{1000 * value:.3g} ms, {value / spent.token_s:.0%}")
            for what, value in rows
            if value > 0.0005 * spent.token_s
        ],
        label="time between tokens, by part",
    )


def _distribution(seconds: Floats, title: str) -> Chart | None:
    """Return a histogram in ms up to the 99.5th percentile, so that one straggler does not hide the rest."""
    if not len(seconds):
        return None
    ms = 1000 * seconds
    most = float(np.percentile(ms, 99.5))
    counts, edges = np.histogram(np.minimum(ms, most), bins=40)
    return histogram(
        edges.tolist(),
        counts.tolist(),
        Axis(f"{title.lower()}, ms"),
        of="how often",
        label=f"histogram of {title.lower()}",
    )


def _row(one: Gain, before: Gain) -> list[Cell]:
    def cell(value: float, old: float, form: str) -> Cell:
        change = value / old - 1 if old else 0.0
        return f"{value:{form}} ({change:+.0%})" if abs(change) >= 0.005 else f"{value:{form}}", value

    return [
        one.change,
        (str(one.gpus), one.gpus),
        cell(one.ttft_ms, before.ttft_ms, ",.1f"),
        cell(one.tpot_ms, before.tpot_ms, ".2f"),
        cell(one.e2el_ms, before.e2el_ms, ",.0f"),
        cell(one.tokens_per_s, before.tokens_per_s, ",.0f"),
        cell(one.tokens_per_s / one.gpus, before.tokens_per_s / before.gpus, ",.1f"),
    ]


class _Intervals:
    """Steps of all replicas in equal intervals of time."""

    def __init__(self, replicas: Sequence[Replica], sent: Mapping[str, float]) -> None:
        self._sent = sent
        ran = [replica for replica in replicas if len(replica.steps)]
        self._replicas = ran
        self._end = max(int(self._column(one, "done_ps")[-1]) for one in ran)
        self._count = min(INTERVALS, max(len(one.steps) for one in ran))
        self._wide_s = self._end / self._count / PS_PER_S

    @staticmethod
    def _column(replica: Replica, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return replica.steps[:, STEP_FIELDS.index(name)]

    def _place(self, replica: Replica) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        place = self._column(replica, "launched_ps") // -(-self._end // self._count)
        return np.minimum(place, self._count - 1)

    def _points(self, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[tuple[float, float], ...]:
        middle = (np.arange(self._count) + 0.5) * self._wide_s
        return tuple(zip(middle.tolist(), values.tolist(), strict=True))

    def _sum(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return a count of steps, by interval."""
        found = np.zeros(self._count)
        for one in self._replicas:
            np.add.at(found, self._place(one), self._column(one, name))
        return found

    def _held(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return what each interval's last step left, summed over replicas; the one before where none ran."""
        whole = np.zeros(self._count)
        for one in self._replicas:
            place, values = self._place(one), self._column(one, name)
            last = np.searchsorted(place, np.arange(self._count), side="right") - 1
            whole += np.where(last >= 0, values[np.maximum(last, 0)], 0)
        return whole

    def charts(self) -> list[tuple[str, Chart | None]]:
        """Return charts over time with their titles."""
        time = Axis("seconds", zero=True)
        blocks = sum(one.scheduler.cache.layout.blocks - 1 for one in self._replicas)
        computed, decoded = self._sum("tokens"), self._sum("decodes")
        used = 100 * (1 - self._held("free_blocks") / blocks)
        used[: int(np.argmax(self._held("free_blocks") > 0))] = 0.0
        return [
            (
                "The queue",
                lines(
                    [
                        Series("running", self._points(self._held("running"))),
                        Series("waiting", self._points(self._held("waiting"))),
                    ],
                    time,
                    Axis("requests", zero=True),
                    label="requests that run and wait over time",
                ),
            ),
            (
                "KV cache",
                lines(
                    [Series("in use", self._points(used))],
                    time,
                    Axis("blocks in use, %", zero=True),
                    label="KV blocks in use over time",
                ),
            ),
            (
                "What steps compute",
                lines(
                    [
                        Series("tokens of prompts", self._points((computed - decoded) / self._wide_s)),
                        Series("decodes", self._points(decoded / self._wide_s)),
                    ],
                    time,
                    Axis("a second", zero=True),
                    label="tokens of prompts and decodes a second over time",
                ),
            ),
            *([("What each GPU sends to others", self._between_gpus(computed, time))] if self._sent else []),
            (
                "Steps",
                lines(
                    [
                        Series(
                            "requests a step", self._points(self._sum("requests") / np.maximum(1, self._steps()))
                        )
                    ],
                    time,
                    Axis("requests a step", zero=True),
                    label="requests a step over time",
                ),
            ),
        ]

    def _between_gpus(self, tokens: np.ndarray[tuple[int], np.dtype[np.float64]], time: Axis) -> Chart | None:
        rate = tokens / len(self._replicas) / self._wide_s / 1e9
        return lines(
            [Series(what, self._points(rate * moved)) for what, moved in self._sent.items()],
            time,
            Axis("GB/s from each GPU", zero=True),
            label="what each GPU sends to others over time",
        )

    def _steps(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        found = np.zeros(self._count)
        for one in self._replicas:
            np.add.at(found, self._place(one), 1)
        return found

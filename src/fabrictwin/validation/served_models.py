"""Measured means of served models beside the twin's: time to first token and time per output token.

`serving.csv` holds one row a benchmark, `serving.yaml` where they come from and what the source leaves unsaid.
Nothing is fitted to a server, so every row judges. The error is the twin's time over the measured one, less one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import Field

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.progress import Stage
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.runs.workers import in_order
from fabrictwin.serving.predict import predict
from fabrictwin.validation.published_data import Section, read_table, read_texts

TABLE, TEXTS = "serving.csv", "serving.yaml"
Whole = Annotated[int, Field(ge=1)]
Time = Annotated[float, Field(gt=0)]


class Load(Section):
    """The load of a benchmark: requests at once, tokens of a prompt and of an output."""

    concurrency: Whole
    input: Whole
    output: Whole


class Served(Load):
    """That load on a layout: tensor and data parallel ranks, and those with whole experts (1: parts of all)."""

    tp: Whole
    dp: Whole
    ep: Whole = 1


class Row(Served):
    """One benchmark of one server: means over its requests."""

    model: str
    hardware: str
    release: str  # of vLLM; empty where the source does not say
    quantization: Literal["auto", "none", "fp8"]
    ttft_ms: Time
    tpot_ms: Time

    @property
    def machine(self) -> str:
        """Return the model, its type where its name does not tell, and the GPU."""
        kind = {"auto": "", "none": " bf16"}.get(self.quantization, f" {self.quantization}")
        return f"{self.model}{kind}, {self.hardware}"


class Client(Section):
    """Who measured, as their scripts have it.

    Requests for each that is sent at once, the shortest length as a share of the longest, and the server's
    settings. A step takes as many tokens as `spare_tokens` beyond a prompt and one of each request, and the
    model's length is that much beyond prompt and output.
    """

    requests: Whole
    shortest: Annotated[float, Field(gt=0, le=1)]
    spare_tokens: Whole | None = None
    server: dict[str, Any] = Field(default_factory=dict)
    fp8: dict[str, Any] = Field(default_factory=dict)  # more of them where the linear layers are in fp8


class Texts(Section):
    source: str
    assumptions: tuple[str, ...] = ()
    again: tuple[str, ...] = ()  # machines whose clients sent prompts that the server had seen
    clients: dict[str, Client]  # by the release of their rows
    hosts: dict[str, str]
    models: dict[str, dict[str, Any]]


@record
class Measured:
    """All rows, in order, and what they refer to."""

    rows: tuple[Row, ...]
    texts: Texts


@record
class Answer:
    """A row with the twin's means in ms."""

    row: Row
    ttft_ms: float
    tpot_ms: float

    @property
    def ttft_error(self) -> float:
        return self.ttft_ms / self.row.ttft_ms - 1

    @property
    def tpot_error(self) -> float:
        return self.tpot_ms / self.row.tpot_ms - 1

    @property
    def paces(self) -> tuple[float, float]:
        """Tokens a second and GPU while requests decode, measured and predicted."""
        each = 1000 * self.row.concurrency / (self.row.tp * self.row.dp)
        return each / self.row.tpot_ms, each / self.tpot_ms


def read_measured(folder: Path) -> Measured:
    """Return the rows and their texts. Raises ConfigError with file and line."""
    texts = read_texts(folder / TEXTS, Texts)
    rows = []
    for line, row in read_table(folder / TABLE, Row):
        for key, known in (
            ("model", tuple(texts.models)),
            ("hardware", tuple(texts.hosts)),
            ("release", tuple(texts.clients)),
        ):
            value = getattr(row, key)
            if value not in known:
                message = f"got {value!r}, expected a key of {TEXTS}{did_you_mean(value, known)}"
                raise ConfigError(message, file=folder / TABLE, line=line, key=key)
        rows.append(row)
    return Measured(tuple(rows), texts)


BLOCK = 16
"""Tokens of a KV block: a prompt that was seen computes its last one again."""
LONGER = 0.2
"""Of a model's length beyond prompt and output, where the client does not say."""


def _load(client: Client, row: Row, *, seen: bool) -> dict[str, Any]:
    """Return what the row's client sends."""
    middle, ratio = (1 + client.shortest) / 2, (1 - client.shortest) / (1 + client.shortest)
    load: dict[str, Any] = {
        "num_prompts": max(client.requests * row.concurrency, 10),
        "max_concurrency": row.concurrency,
        "random_input_len": round(middle * row.input),
        "random_output_len": round(middle * row.output),
        "random_range_ratio": ratio,
    }
    if seen and row.input > BLOCK:
        load |= {"prefixes": row.concurrency, "prefix_tokens": row.input - BLOCK, "random_input_len": BLOCK}
    return load


def _settings(client: Client, row: Row) -> dict[str, Any]:
    """Return the server's settings that the client's scripts give."""
    each = -(-row.concurrency // row.dp)
    found = {"max_num_seqs": each, **client.server, **(client.fp8 if row.quantization == "fp8" else {})}
    length = row.input + row.output
    if client.spare_tokens is None:
        return {**found, "max_model_len": int((1 + LONGER) * length) + 200}
    budget = each + row.input + client.spare_tokens
    return {**found, "max_num_batched_tokens": budget, "max_model_len": length + client.spare_tokens}


def answer_row(texts: Texts, row: Row) -> Answer:
    """Run the row's server under its benchmark."""
    client = texts.clients[row.release]
    serving = {
        "model": {**texts.models[row.model], "_name": row.model},
        "release": row.release if row.release else "0.19",
        "quantization": row.quantization,
        "tensor_parallel_size": row.tp,
        "data_parallel_size": row.dp,
        "enable_expert_parallel": row.ep > 1,
        "benchmark": _load(client, row, seen=row.machine in texts.again),
        **_settings(client, row),
    }
    network = {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"}
    cluster = {"hosts": {"type": texts.hosts[row.hardware], "count": 1}, "network": network}
    spec = read_spec({"schema": 1, "name": row.machine, "cluster": cluster, "workload": {"serving": serving}})
    fields = predict(spec).fields
    return Answer(row, float(fields["mean_ttft_ms"]), float(fields["mean_tpot_ms"]))


class _Ask:
    """Answers one row; kept apart so that other processes can take it."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts

    def __call__(self, row: Row) -> Answer:
        return answer_row(self.texts, row)


def answers(measured: Measured, stage: Stage, *, match: str = "", workers: int | None = 1) -> list[Answer]:
    """Return the twin's means of every row whose model or GPU contains a text."""
    chosen = [row for row in measured.rows if match.lower() in row.machine.lower()]
    names = [f"{i + 1} of {len(chosen)} servers: {row.machine}" for i, row in enumerate(chosen)]
    return in_order(_Ask(measured.texts), chosen, workers, stage, names)


def _line(name: str, found: list[Answer], width: int) -> str:
    tpot = sorted(abs(one.tpot_error) for one in found)
    bias = median(one.tpot_error for one in found)
    ttft = median(abs(one.ttft_error) for one in found)
    nine = tpot[min(len(tpot) - 1, int(0.9 * len(tpot)))]
    return f"    {name:<{width}}  {len(found):4d}  {median(tpot):11.1%}  {nine:8.1%}  {bias:+10.1%}  {ttft:11.1%}"


DIFFER = 1.1
"""Ratio of measured figures from which on their order is asked for."""


def ranking(found: Iterable[Answer]) -> tuple[int, int]:
    """Return how many pairs of servers are in the measured order by tokens a second and GPU, and how many there
    are.

    A pair is of one model and the same lengths, on other GPUs, another layout or under another load, and was
    measured to differ by `DIFFER`.
    """
    right = pairs = 0
    for one, two in combinations(found, 2):
        if (one.row.model, one.row.input, one.row.output) != (two.row.model, two.row.input, two.row.output):
            continue
        (a, mine), (b, other) = one.paces, two.paces
        if max(a, b) >= DIFFER * min(a, b):
            pairs += 1
            right += (a < b) == (mine < other)
    return right, pairs


def served_text(measured: Measured, found: Iterable[Answer], *, every: bool = False) -> str:
    """Return errors by model and GPU, and each row where that is asked for."""
    found = list(found)
    machines = list(dict.fromkeys(one.row.machine for one in found))
    width = max(len("all rows"), *map(len, machines))
    lines = [
        "served models, measured and predicted: nothing is fitted to a server",
        "  error: the twin's time over the measured one, less one",
        "",
        f"    {'':<{width}}  rows  TPOT median  9 in 10  TPOT error  TTFT median",
        _line("all rows", found, width),
        *(_line(each, [one for one in found if one.row.machine == each], width) for each in machines),
    ]
    right, pairs = ranking(found)
    if pairs:
        order = f"{right} of {pairs} pairs of one model and lengths, of those that differ by {DIFFER - 1:.0%}"
        lines += ["", f"    order by tokens/s/GPU right: {order}"]
    if every:
        lines += ["", "  rows: TP, DP, concurrency, tokens in and out, then TPOT and TTFT in ms"]
        lines += [
            f"    {one.row.machine:<{width}}  {one.row.tp} {one.row.dp} {one.row.concurrency:5d}"
            f" {one.row.input:6d} {one.row.output:5d}"
            f"  {one.tpot_ms:8.2f} for {one.row.tpot_ms:8.2f} ({one.tpot_error:+.1%})"
            f"  {one.ttft_ms:9.1f} for {one.row.ttft_ms:9.1f} ({one.ttft_error:+.1%})"
            for one in found
        ]
    lines += ["", f"  from {measured.texts.source}", *(f"    - {each}" for each in measured.texts.assumptions)]
    return "\n".join(lines) + "\n"


def served_json(measured: Measured, found: Iterable[Answer]) -> str:
    """Return every row as JSON, errors in percent."""
    found = list(found)
    rows = [
        {
            **one.row.model_dump(),
            "predicted_ttft_ms": round(one.ttft_ms, 3),
            "predicted_tpot_ms": round(one.tpot_ms, 3),
            "ttft_error_percent": round(100 * one.ttft_error, 2),
            "tpot_error_percent": round(100 * one.tpot_error, 2),
        }
        for one in found
    ]
    texts = measured.texts
    right, pairs = ranking(found)
    whole = {
        "schema": 1,
        "source": texts.source,
        "assumptions": list(texts.assumptions),
        "pairs": pairs,
        "pairs_in_order": right,
        "rows": rows,
    }
    return json.dumps(whole, indent=2) + "\n"

"""Published traces as demand.

| format | file | source |
|---|---|---|
| `mooncake` | JSONL: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of 512 tokens | Mooncake,
FAST '25 | | `azure` | CSV: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens` | AzurePublicDataset, LLM inference
2023 and 2024 | | `burstgpt` | CSV: `Timestamp` (s), `Request tokens`, `Response tokens` | BurstGPT (arXiv
2401.17644) | | `llmservingsim` | JSONL: `arrival_time_ns`, `input_toks`, `output_toks`, `input_tok_ids` |
LLMServingSim 2.0 | | `sharegpt` | JSON: a list of `conversations` of turns with a `value` | ShareGPT, as `vllm
bench serve` reads it |

Times count from the first request. Requests that gave no output are failures in these traces, and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fabrictwin.base.arrays import starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text
from fabrictwin.base.units import PS_PER_MS, PS_PER_NS, PS_PER_S
from fabrictwin.serving.arrivals.demand import Contents, Demand, HashedBlocks, Unshared
from fabrictwin.serving.traces.rows import Row, csv_rows, json_rows

MOONCAKE_TOKENS = 512
CHAIN_TOKENS = 16
LONGEST_TRACE_S = 40 * 86400


@record
class _Request:
    time_ps: int
    prompt: int
    output: int
    blocks: list[int] | None = None


def _demand(requests: Iterator[_Request], path: Path, limit: int | None, block_tokens: int = 0) -> Demand:
    """Gather requests into arrays in order of time; those of equal time stay in the file's order."""
    kept: list[_Request] = []
    for request in requests:
        if limit is not None and len(kept) >= limit:
            break
        if request.output:
            kept.append(request)
    if not kept:
        raise ConfigError("got no request with output", file=path)
    kept.sort(key=lambda request: request.time_ps)
    times = np.array([request.time_ps for request in kept], np.int64)
    contents: Contents = Unshared()
    if block_tokens:
        counts = [len(request.blocks or ()) for request in kept]
        offsets = starts_of(counts)
        ids = np.fromiter((one for request in kept for one in request.blocks or ()), np.int64, int(offsets[-1]))
        contents = HashedBlocks(block_tokens, offsets, ids)
    prompt = np.array([request.prompt for request in kept], np.int64)
    output = np.array([request.output for request in kept], np.int64)
    return Demand(times - times[0], prompt, output, contents)


def _mooncake(path: Path, limit: int | None) -> Demand:
    def requests() -> Iterator[_Request]:
        for row in json_rows(path):
            prompt = row.tokens("input_length")
            ids = row.integers("hash_ids")
            if len(ids) != -(-prompt // MOONCAKE_TOKENS):
                expected = f"{-(-prompt // MOONCAKE_TOKENS)} for {prompt} tokens in blocks of {MOONCAKE_TOKENS}"
                raise row.error("hash_ids", len(ids), expected)
            yield _Request(row.time_ps("timestamp", PS_PER_MS), prompt, row.tokens("output_length", least=0), ids)

    return _demand(requests(), path, limit, MOONCAKE_TOKENS)


_YEAR_2000 = datetime(2000, 1, 1, tzinfo=UTC)


def _moment(row: Row, key: str) -> tuple[int, int]:
    """Return a date and time as seconds since 2000 and nanoseconds; fractions may have up to nine digits."""
    expected = "a date and time such as 2023-11-16 18:15:46.6805900"
    got = row.field(key, expected)
    text = str(got).strip().removesuffix("+00:00").removesuffix("Z")
    whole, _, fraction = text.partition(".")
    if fraction and not (fraction.isdecimal() and fraction.isascii() and len(fraction) <= 9):
        raise row.error(key, got, expected)
    try:
        moment = datetime.fromisoformat(whole + "+00:00")
    except ValueError:
        raise row.error(key, got, expected) from None
    if moment.tzinfo is None:  # the zone was read as a part of the time
        raise row.error(key, got, expected)
    return int((moment - _YEAR_2000).total_seconds()), int(fraction.ljust(9, "0") or 0)


def _azure(path: Path, limit: int | None) -> Demand:
    def requests() -> Iterator[_Request]:
        origin = None
        for row in csv_rows(path, "TIMESTAMP", "ContextTokens", "GeneratedTokens"):
            seconds, nanoseconds = _moment(row, "TIMESTAMP")
            origin = seconds if origin is None else origin
            if abs(seconds - origin) > LONGEST_TRACE_S:
                raise row.error(
                    "TIMESTAMP", seconds - origin, f"at most {LONGEST_TRACE_S} s from the first request"
                )
            time_ps = (seconds - origin) * PS_PER_S + nanoseconds * PS_PER_NS
            yield _Request(time_ps, row.tokens("ContextTokens"), row.tokens("GeneratedTokens", least=0))

    return _demand(requests(), path, limit)


def _burstgpt(path: Path, limit: int | None) -> Demand:
    def requests() -> Iterator[_Request]:
        for row in csv_rows(path, "Timestamp", "Request tokens", "Response tokens"):
            output = row.tokens("Response tokens", least=0)
            if output:
                yield _Request(row.time_ps("Timestamp", PS_PER_S), row.tokens("Request tokens"), output)

    return _demand(requests(), path, limit)


def _llmservingsim(path: Path, limit: int | None) -> Demand:
    chains: dict[tuple[int, tuple[int, ...]], int] = {}

    def requests() -> Iterator[_Request]:
        for row in json_rows(path):
            prompt = row.tokens("input_toks")
            ids = row.integers("input_tok_ids")
            if len(ids) != prompt:
                raise row.error("input_tok_ids", len(ids), f"{prompt}, as input_toks says")
            blocks = []
            parent = -1
            for start in range(0, prompt - CHAIN_TOKENS + 1, CHAIN_TOKENS):
                block = (parent, tuple(ids[start : start + CHAIN_TOKENS]))
                parent = chains.setdefault(block, len(chains))
                blocks.append(parent)
            yield _Request(row.time_ps("arrival_time_ns", PS_PER_NS), prompt, row.tokens("output_toks"), blocks)

    return _demand(requests(), path, limit, CHAIN_TOKENS)


TOKENS_PER_CHARACTER = 0.25
"""An estimate, for English text: the project has no tokenizer."""

SHAREGPT_MOST_PROMPT, SHAREGPT_MOST_TOTAL, SHAREGPT_LEAST = 1024, 2048, 4


def _sharegpt(path: Path, limit: int | None) -> Demand:
    """First two turns of each conversation, lengths by characters; those out of bounds are left out, as vLLM
    does.
    """

    def requests() -> Iterator[_Request]:
        try:
            held = json.loads(read_text(path))
        except (ValueError, RecursionError):
            raise ConfigError("got text that is not JSON", file=path) from None
        if not isinstance(held, list):
            raise ConfigError(f"got {type(held).__name__}, expected a list of conversations", file=path)
        for place, one in enumerate(held):
            turns = one.get("conversations") if isinstance(one, dict) else None
            if not isinstance(turns, list):
                raise ConfigError("expected a list", file=path, key=f"[{place}].conversations")
            if len(turns) >= 2:
                prompt, output = (_characters(turn, path, place) for turn in turns[:2])
                fits = prompt <= SHAREGPT_MOST_PROMPT and prompt + output <= SHAREGPT_MOST_TOTAL
                if min(prompt, output) >= SHAREGPT_LEAST and fits:
                    yield _Request(0, prompt, output)

    return _demand(requests(), path, limit)


def _characters(turn: Any, path: Path, place: int) -> int:
    value = turn.get("value") if isinstance(turn, dict) else None
    if not isinstance(value, str):
        raise ConfigError("expected text", file=path, key=f"[{place}].conversations[].value")
    return round(len(value) * TOKENS_PER_CHARACTER)


READERS: dict[str, Callable[[Path, int | None], Demand]] = {
    "mooncake": _mooncake,
    "azure": _azure,
    "burstgpt": _burstgpt,
    "llmservingsim": _llmservingsim,
    "sharegpt": _sharegpt,
}


def read_trace(path: Path, form: str, *, limit: int | None = None) -> Demand:
    """Return the requests of a trace, the first `limit` of them.

    Raises:
        ConfigError: The file is not of that format; names file, line and field.
    """
    return READERS[form](path, limit)

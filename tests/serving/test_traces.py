"""Traces in their published formats: what they say, and one clear error where they are broken."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.base.errors import ConfigError
from fabrictwin.serving.traces.formats import READERS, read_trace

MOONCAKE = [
    {"timestamp": 500, "input_length": 1030, "output_length": 7, "hash_ids": [4, 5, 6]},
    {"timestamp": 0, "input_length": 1500, "output_length": 3, "hash_ids": [4, 5, 9]},
    {"timestamp": 900, "input_length": 5, "output_length": 0, "hash_ids": [12]},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,0,1087,Conversation log
118,ChatGPT,417,276,693,Conversation log
"""
LLMSERVINGSIM = [
    {"input_toks": 34, "output_toks": 2, "arrival_time_ns": 10, "input_tok_ids": list(range(34))},
    {"input_toks": 33, "output_toks": 2, "arrival_time_ns": 20, "input_tok_ids": [*range(16), *range(50, 67)]},
]
SHAREGPT = [
    {"id": "a", "conversations": [{"from": "human", "value": "x" * 400}, {"from": "gpt", "value": "y" * 80}]},
    {"id": "b", "conversations": [{"from": "human", "value": "short"}]},
]

SAMPLES = {
    "mooncake": "\n".join(map(json.dumps, MOONCAKE)),
    "azure": AZURE,
    "burstgpt": BURSTGPT,
    "llmservingsim": "\n".join(map(json.dumps, LLMSERVINGSIM)),
    "sharegpt": json.dumps(SHAREGPT),
}


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_mooncake_in_order_of_time_and_blocks_shared(tmp_path: Path) -> None:
    demand = read_trace(written(tmp_path, SAMPLES["mooncake"]), "mooncake")
    assert demand.arrival_ps.tolist() == [0, 500_000_000_000]
    assert demand.prompt.tolist() == [1500, 1030]
    one, two = (demand.contents.keys(place, int(demand.prompt[place]), 16, 0)(0, 96) for place in (0, 1))
    shared = sum(first == second for first, second in zip(one, two, strict=True))
    assert shared == 64  # two whole blocks of 512 tokens
    assert len({*one, *two}) == 96 + 96 - 64


def test_output_of_a_hashed_prompt_is_its_own(tmp_path: Path) -> None:
    demand = read_trace(written(tmp_path, SAMPLES["mooncake"]), "mooncake")
    keys = demand.contents.keys(1, 1030, 16, 0)
    # 64 full blocks of the prompt; the next holds 6 of its tokens and 10 of its output
    assert keys(64, 66) != demand.contents.keys(0, 1500, 16, 0)(64, 66)
    assert keys(0, 66) == keys(0, 30) + keys(30, 66)


@pytest.mark.parametrize(("text", "gap"), [(AZURE, 4_314_579_000_000), (AZURE_2024, 7_405_000_000)])
def test_azure(tmp_path: Path, text: str, gap: int) -> None:
    demand = read_trace(written(tmp_path, text), "azure")
    assert demand.arrival_ps.tolist() == [0, gap]
    assert demand.prompt.tolist() == [int(line.split(",")[1]) for line in text.splitlines()[1:]]


def test_burstgpt_without_failures(tmp_path: Path) -> None:
    demand = read_trace(written(tmp_path, BURSTGPT), "burstgpt")
    assert demand.arrival_ps.tolist() == [0, 113 * 10**12]
    assert demand.output.tolist() == [18, 276]


def test_llmservingsim_shares_chains_of_tokens(tmp_path: Path) -> None:
    demand = read_trace(written(tmp_path, SAMPLES["llmservingsim"]), "llmservingsim")
    one, two = (demand.contents.keys(place, 33, 16, 0)(0, 2) for place in (0, 1))
    assert one[0] == two[0]
    assert one[1] != two[1]


def test_sharegpt_by_characters(tmp_path: Path) -> None:
    demand = read_trace(written(tmp_path, SAMPLES["sharegpt"]), "sharegpt")
    assert (demand.prompt.tolist(), demand.output.tolist()) == ([100], [20])


def test_the_first_requests_alone(tmp_path: Path) -> None:
    assert len(read_trace(written(tmp_path, BURSTGPT), "burstgpt", limit=1)) == 1


@pytest.mark.parametrize(
    ("form", "text", "error"),
    [
        ("mooncake", '{"timestamp": 1}', "trace:1 input_length: got 'nothing', expected a count of tokens"),
        ("mooncake", "{}\n[1]", "trace:1 input_length"),
        ("mooncake", SAMPLES["mooncake"] + "\n[1]", "trace:4: got list, expected an object"),
        (
            "mooncake",
            SAMPLES["mooncake"].replace("[4, 5, 9]", "[4]"),
            "trace:2 hash_ids: got 1, expected 3 for 1500",
        ),
        ("mooncake", SAMPLES["mooncake"].replace("[4, 5, 9]", "[4, -5, 9]"), "trace:2 hash_ids: got .* integers"),
        (
            "mooncake",
            '{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
            "timestamp: got -1",
        ),
        ("mooncake", "", "trace: got no request with output"),
        ("azure", "a,b\n1,2", "trace:1: got the columns a, b, expected TIMESTAMP"),
        ("azure", AZURE.replace("2023-11-16 18:15:50", "yesterday"), "trace:3 TIMESTAMP: got 'yesterday"),
        ("azure", AZURE.replace("396", "many"), "trace:3 ContextTokens: got 'many'"),
        ("azure", AZURE + "1,2", "trace:4: got 2 cells, expected 3"),
        ("burstgpt", BURSTGPT.replace("118", "nan"), "trace:4 Timestamp: got 'nan'"),
        ("llmservingsim", json.dumps(LLMSERVINGSIM[0] | {"input_toks": 33}), "input_tok_ids: got 34, expected 33"),
        ("sharegpt", "{}", "trace: got dict, expected a list"),
        ("sharegpt", '[{"conversations": [{"value": 1}, {"value": 2}]}]', r"\[0\].conversations\[\].value"),
    ],
)
def test_errors_name_line_and_field(tmp_path: Path, form: str, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        read_trace(written(tmp_path, text), form)


@pytest.mark.parametrize("form", sorted(READERS))
def test_missing_and_binary_files(tmp_path: Path, form: str) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_trace(tmp_path / "nothing", form)
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_trace(written(tmp_path, b"\xff\xfe\x00"), form)
    (tmp_path / "trace.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(ConfigError):
        read_trace(tmp_path / "trace.gz", form)


@pytest.mark.parametrize("form", sorted(READERS))
@given(seed=st.integers(0, 10**9))
def test_damaged_traces_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, form: str, seed: int
) -> None:
    draw = random.Random(seed)
    text = bytearray(SAMPLES[form].encode())
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(len(text))
        if draw.random() < 0.5:
            text[place] = draw.choice(b'0123456789,.-{}[]"\n e\x00\xff')
        else:
            del text[place : place + draw.randint(1, 20)]
    path = tmp_path_factory.mktemp("damaged") / "trace"
    path.write_bytes(bytes(text))
    error = ""
    try:
        demand = read_trace(path, form)
    except ConfigError as refused:
        error = str(refused)
    if error:
        assert error.startswith(str(path))
    else:
        assert (np.diff(demand.arrival_ps) >= 0).all()
        assert demand.prompt.min() >= 1


def test_a_count_in_a_cell_is_digits_between_spaces(tmp_path):
    """Python's `strip` takes control characters for spaces, and `int` does not."""
    for cell, taken in ((" 374 ", True), ("\x1f374", False), ("3_74", False), ("+374", False)):
        path = tmp_path / "trace.csv"
        path.write_text(AZURE.replace("374", cell))
        if taken:
            assert read_trace(path, "azure").prompt[0] == 374
        else:
            with pytest.raises(ConfigError, match=r"trace\.csv:2 ContextTokens: .*expected a count of tokens"):
                read_trace(path, "azure")


@pytest.mark.second
def test_a_trace_is_not_waited_for_and_a_broken_pack_is_one_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    packed = bytearray(gzip.compress(AZURE.encode() * 40))
    packed[30:60] = bytes(30)
    (tmp_path / "trace.gz").write_bytes(packed)
    for name, wanted in (
        ("pipe", "nobody writes"),
        ("trace.gz", "trace.gz.*(unpacked|read)"),
        ("none", "no such"),
    ):
        with pytest.raises(ConfigError, match=wanted):
            read_trace(tmp_path / name, "azure")

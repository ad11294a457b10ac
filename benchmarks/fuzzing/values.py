"""Targets of `fuzz.py`: values with units, names, options."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fuzzing.target import Target, of_text


def _units() -> Target:
    from fabrictwin.base import units

    parsers = [units.parse_rate, units.parse_size, units.parse_time, units.parse_length, units.parse_flops]
    return Target(
        [b"400 Gb/s", b"2 MiB", b"1.3 us", b"5 m", b"989.4 TFLOP/s", b"1_000 ns", b".5e-3 s"],
        of_text(_each(parsers)),
        (ValueError,),
    )


def _each(parsers: list[Callable[[Any], Any]]) -> Callable[[str], None]:
    def read(text: str) -> None:
        for parse in parsers:
            with suppress(ValueError):
                parse(text)

    return read


def _quantities() -> Target:
    from fabrictwin.catalog import quantities as q
    from fabrictwin.catalog.failures import parse_failure_rate
    from fabrictwin.catalog.hosts import spread
    from fabrictwin.study.campaign.campaign_section import parse_tokens

    parsers = [
        q.parse_count, q.parse_identifier, q.parse_ratio, q.parse_bits, q.parse_power, q.parse_message_rate,
        q.parse_lane_rate, q.parse_capability, lambda text: list(spread([text])),
        parse_failure_rate, parse_tokens,
    ]  # fmt: skip
    samples = [
        b"12 links", b"0x02c9", b"256/257 * 514/544", b"92 %", b"5440 bits", b"700 W", b"215 M msg/s", b"16 GT/s", b"sm_90",
        b"gpu0..gpu7", b"148 / 884,736 GPU-days", b"15.6T",
    ]  # fmt: skip
    return Target(samples, of_text(_each(parsers)), (ValueError,))


def _whole_numbers() -> Target:
    from fabrictwin.base.whole_numbers import read_json, whole
    from fabrictwin.cluster.names import clean_name, natural_key, parse_name, split_jack
    from fabrictwin.nccl.settings.device_filters import device_filter
    from fabrictwin.nccl.settings.variable_values import strtoll

    parsers: list[Callable[[Any], Any]] = [
        lambda text: [whole(text, base=base) for base in (0, 10, 16)],
        read_json, natural_key, clean_name, parse_name, split_jack, device_filter, strtoll,
    ]  # fmt: skip
    return Target(
        [b"12", b"0xff", b"-3", b"host-12/mlx5_0", b"=mlx5_0:1,^mlx5_1", b'{"a": [1, 2e3]}'],
        of_text(_each(parsers)),
        (ValueError,),
    )


def _nccl_tests() -> Target:
    from fabrictwin.tools.nccl_tests.perf import TESTS, Options, parse_size

    def read(text: str) -> None:
        words = text.split()
        sizes = [parse_size(word) for word in words[:3]]
        numbers = [int(word) for word in words[3:5] if word.isascii() and word.isdecimal() and len(word) < 10]
        test = next(iter(TESTS.values())) if isinstance(TESTS, dict) else TESTS[0]
        Options(
            test,
            min_bytes=sizes[0] if sizes else 8,
            max_bytes=sizes[1] if len(sizes) > 1 else 1 << 20,
            step_bytes=sizes[2] if len(sizes) > 2 else 1 << 10,
            step_factor=numbers[0] if numbers else 2,
            datatype=words[5] if len(words) > 5 else "float",
            operation=words[6] if len(words) > 6 else "sum",
        ).sizes()

    return Target([b"8 128M 1K 2 20 float sum", b"1G 16G 1.5M 1 5 bfloat16 max", b"64K 64K 8"], of_text(read))


def _perftest() -> Target:
    from fabrictwin.tools.perftest.perftest_options import PerftestOptions

    def read(text: str) -> None:
        words = text.split()
        numbers = [int(word) if re.fullmatch(r"-?[0-9]{1,18}", word) else None for word in words[4:9]]
        numbers += [None] * (5 - len(numbers))
        options = PerftestOptions(
            test=words[0] if words else "",
            source=words[1] if len(words) > 1 else "a",
            target=words[2] if len(words) > 2 else "b",
            connection=words[3] if len(words) > 3 else "RC",
            size=numbers[0],
            iterations=numbers[1],
            queue_pairs=numbers[2] if numbers[2] is not None else 1,
            tx_depth=numbers[3],
            inline=numbers[4],
        )
        for size in options.sizes(4096):
            options.rounds(size)

    return Target(
        [b"ib_write_bw a b RC 65536 1000 1 128 0", b"ib_send_lat a b UD 64 5", b"ib_atomic_bw a b RC 8 100 2 1 0"],
        of_text(read),
    )


VALUES: dict[str, Callable[[], Target]] = {
    "units": _units,
    "quantities": _quantities,
    "whole-numbers": _whole_numbers,
    "nccl-tests": _nccl_tests,
    "perftest": _perftest,
}

"""Whole numbers, ranges and quotations: within limits, and one clear error beyond them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.base.errors import LONGEST_MESSAGE, ConfigError, quoted
from fabrictwin.base.whole_numbers import MOST_DIGITS, numbered, read_json, whole, whole_or_none
from fabrictwin.base.yamlfile import read_yaml, undotted

HUGE = "9" * 4400  # more digits than Python turns into a number


@given(st.integers(0, 2**63 - 1))
def test_a_number_comes_back_in_every_base(number):
    assert whole(str(number)) == number
    assert whole(hex(number), base=16) == whole(f"{number:X}", base=16) == number
    assert whole(hex(number), base=0) == whole(str(number), base=0) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1 ", "1_0", "1.0", "0x1", "٣", "²", "1e3", HUGE, "x"])
def test_what_is_no_number_is_refused_and_quoted_short(text):
    with pytest.raises(ValueError, match="expected a whole number from 0 to") as refused:
        whole(text)
    assert len(str(refused.value)) < 150
    assert whole_or_none(text) is None


def test_limits_are_part_of_the_refusal():
    assert whole("7", least=7, most=7) == 7
    with pytest.raises(ValueError, match="got '8', expected a whole number from 1 to 7"):
        whole("8", least=1, most=7)
    with pytest.raises(ValueError, match="from 0x0 to 0xff"):
        whole("100", most=255, base=16)
    with pytest.raises(ValueError, match="from 0x0"):
        whole("0x" + "f" * 4400, base=16)


def test_a_range_is_counted_before_it_is_spelled_out():
    assert list(numbered("gpu", 2, 4, most=8)) == ["gpu2", "gpu3", "gpu4"]
    for first, last in ((0, 7_777_777_777), (4, 2)):
        with pytest.raises(ValueError, match="expected a range of 1 to 1024"):
            numbered("gpu", first, last, most=1024)


def test_json_has_numbers_of_a_size_and_an_end_to_its_nesting():
    assert read_json('{"a": [1, 2.5e3, -7]}') == {"a": [1, 2500.0, -7]}
    with pytest.raises(ValueError, match=f"expected a number of at most {MOST_DIGITS} digits"):
        read_json(f'{{"a": {HUGE}}}')
    with pytest.raises(ValueError, match="nested too deep"):
        read_json("[" * 200_000)
    with pytest.raises(json.JSONDecodeError):
        read_json("{")


def test_yaml_refuses_numbers_that_nothing_could_print():
    hexadecimal = "0x" + "f" * 4400
    for text in (HUGE, hexadecimal, "-" + HUGE):
        with pytest.raises(ConfigError, match=r"f:1 a: got .*, expected plain text or a number") as refused:
            read_yaml(f"a: {text}", "f")
        assert len(str(refused.value)) < 150
    assert read_yaml("[0x1F, -12, 1_000]", "f")[0] == [31, -12, 1000]
    assert undotted(f"hosts[{HUGE}].type") == ("hosts", HUGE, "type")


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, b"x" * 10**6, 10**5000, -(10**5000), ["x" * 10**5] * 3],
    ids=["text", "bytes", "large", "negative", "list"],
)
def test_a_quotation_is_short(value):
    assert len(quoted(value)) <= 64


def test_short_things_are_quoted_whole():
    assert quoted("a'b") == repr("a'b")
    assert quoted(12) == "12"
    assert quoted("x" * 58) == repr("x" * 58)
    assert quoted("x" * 59) == "'" + "x" * 56 + "..."


def test_an_error_cuts_what_it_echoes_whoever_raised_it():
    error = ConfigError(f"got {'y' * 50_000}, expected less", key="k" * 50_000)
    assert len(str(error)) < 400
    assert "got yyy" in error.message
    assert error.message.endswith("expected less")
    many = ConfigError("a b " * 50_000)
    assert len(many.message) <= LONGEST_MESSAGE

"""Formulas of headroom against their own sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.configuration.headroom import broadcom, mlx5, spectrum
from fabrictwin.configuration.headroom.spectrum import CHIPS, Traffic, headroom

# SONiC's static tables of the SN5600, which were made with the script: (Gb/s, m) -> xoff
SN5600 = {
    (100, 5): 113_664,
    (100, 40): 126_976,
    (100, 300): 225_280,
    (400, 5): 231_424,
    (400, 40): 283_648,
    (400, 300): 677_888,
    (800, 5): 257_024,
    (800, 40): 362_496,
    (800, 300): 1_150_976,
}


@pytest.mark.parametrize("link", SN5600)
def test_spectrum_4_gives_the_published_table_to_the_byte(link: tuple[int, int]) -> None:
    gbps, metres = link
    found = headroom(CHIPS["spectrum-4"], gbps * 1000, metres, Traffic(port_mtu_bytes=9216))
    assert found.xoff_bytes == SN5600[link]


def test_spectrum_counts_xon_and_eight_lanes() -> None:
    chip = CHIPS["spectrum-4"]
    four, eight = (headroom(chip, 400_000, 40, eight_lanes=lanes) for lanes in (False, True))
    assert four.xon_bytes == 19 * 1024
    assert four.size_bytes == four.xoff_bytes + four.xon_bytes
    assert eight.xon_bytes == 38 * 1024
    assert eight.size_bytes == -(-(eight.xoff_bytes + eight.xon_bytes + 9100) // 1024) * 1024
    shared = headroom(chip, 400_000, 40, shared_pool=True)
    assert (shared.size_bytes, shared.xoff_bytes) == (four.xon_bytes, four.xoff_bytes)


def test_spectrum_with_fewer_small_packets_is_compensated_unless_headroom_is_shared() -> None:
    chip, traffic = CHIPS["spectrum-4"], Traffic(small_packet_percent=50)
    own, shared = (headroom(chip, 400_000, 40, traffic, shared_pool=pool) for pool in (False, True))
    assert own.xoff_bytes == shared.xoff_bytes + 2048


@given(
    st.sampled_from(sorted(CHIPS)),
    st.sampled_from(sorted(spectrum.PAUSE_QUANTA)),
    st.integers(1, 300),
    st.integers(0, 800),
)
def test_spectrum_grows_with_the_cable_and_the_gearbox(chip: str, mbps: int, metres: int, gearbox: int) -> None:
    near = headroom(CHIPS[chip], mbps, metres, Traffic(gearbox_ns=gearbox))
    far = headroom(CHIPS[chip], mbps, metres + 50, Traffic(gearbox_ns=gearbox + 10))
    assert near.xoff_bytes % 1024 == 0
    assert far.xoff_bytes >= near.xoff_bytes


def test_mlx5_as_the_driver_cuts_it() -> None:
    # 301 + 86 (2.16 times 40, cut) times 400, and 2.72 of 9,216, cut
    assert mlx5.headroom_bytes(400_000, 40, 9216) == 387 * 400 + 25_067
    assert mlx5.headroom_bytes(10_000, 40, 9216) == mlx5.headroom_bytes(40_000, 40, 9216)
    assert mlx5.least_buffer(400_000, 40, 9216) == 387 * 400 + 25_067 + 9216 + 128
    buffer = mlx5.receive_buffer(262_144, 100_000, 7, 9238)
    assert buffer.xoff_bytes == 262_144 - mlx5.headroom_bytes(100_000, 7, 9238)
    assert buffer.xon_bytes == buffer.xoff_bytes - 9216
    with pytest.raises(ValueError, match="expected at least 189875"):
        mlx5.receive_buffer(100_000, 400_000, 40, 9238 + 222)


@pytest.mark.parametrize("link", broadcom.TABLE)
def test_the_tomahawk_interpretation_is_within_five_percent_of_the_table(link: tuple[int, int]) -> None:
    found = broadcom.headroom_bytes(*link)
    assert abs(found / broadcom.TABLE[link] - 1) < 0.05
    assert broadcom.TABLE[link] % broadcom.CELLS["tomahawk"] == 0

"""NCCL_* variables: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import ctypes
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.base.errors import ConfigError
from fabrictwin.nccl.communicator.communicator import PathType
from fabrictwin.nccl.settings.algorithm_selection import ALGORITHMS, COLLECTIVES, select
from fabrictwin.nccl.settings.device_filters import device_filter
from fabrictwin.nccl.settings.settings import (
    DEFAULT_SUBSYSTEMS,
    READERS,
    VARIABLES,
    Settings,
    from_mapping,
    known_without_effect,
    read_settings,
)
from fabrictwin.nccl.settings.variable_values import strtoll
from fabrictwin.nccl.settings.version import version


def notes(settings: Settings) -> dict[str, str]:
    return {note.variable: note.text for note in settings.notes}


def test_nothing_set_is_nccls_defaults() -> None:
    assert read_settings({"PATH": "/bin", "HOME": "/"}) == Settings()


def test_defaults_follow_the_release() -> None:
    old, new = read_settings({}, release="2.18.3"), read_settings({}, release="2.30.7")
    assert (old.ib_gid_index, old.ib_timeout, old.ib_split_data_on_qps, old.nvls_nchannels) == (0, 18, 1, 16)
    assert (new.ib_gid_index, new.ib_timeout, new.ib_split_data_on_qps, new.nvls_nchannels) == (-1, 20, 0, None)
    assert (old.pxn_c2c, new.pxn_c2c) == (0, 1)


@pytest.mark.parametrize("text", ["2.17.1", "3.0", "x", "", "2", "2.21.5.1", "-2.21"])
def test_versions_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="expected an NCCL"):
        version(text)


def test_versions_as_people_write_them() -> None:
    assert {version(text) for text in ("2.21.5", "v2.21.5-1", "2.21.5+cuda12.4")} == {(2, 21, 5)}


def test_every_variable_is_one_of_nccls() -> None:
    from importlib.resources import files

    known = files("fabrictwin.nccl").joinpath("data/variables.txt").read_text().split("\n")
    assert set(VARIABLES) <= set(known)
    assert set(known_without_effect()).isdisjoint(VARIABLES)


libc = ctypes.CDLL(None, use_errno=True)
libc.strtoll.restype = ctypes.c_longlong
libc.strtoll.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]


@given(
    st.one_of(
        st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=24),
        st.from_regex(r"\A[ ]{0,2}[-+]?(0x|0X|0)?[0-9a-fA-F]{0,22}[a-z]?\Z"),
    )
)
def test_numbers_are_read_as_c_reads_them(text: str) -> None:
    ctypes.set_errno(0)
    value = libc.strtoll(text.encode(), None, 0)
    expected = None if ctypes.get_errno() == errno.ERANGE else value
    assert strtoll(text) == expected


def test_a_word_for_a_number_counts_and_is_named() -> None:
    settings = read_settings({"NCCL_IB_DISABLE": "true", "NCCL_MIN_NCHANNELS": "0x10", "NCCL_BUFFSIZE": "8M"})
    assert (settings.ib_disable, settings.min_nchannels, settings.buffsize) == (0, 16, 8)
    assert set(notes(settings)) == {"NCCL_IB_DISABLE", "NCCL_BUFFSIZE"}
    assert "reads as 8" in notes(settings)["NCCL_BUFFSIZE"]


def test_unset_by_number_or_emptiness() -> None:
    settings = read_settings({"NCCL_MAX_NCHANNELS": "-2", "NCCL_IB_TC": "-1", "NCCL_NTHREADS": ""})
    assert (settings.max_nchannels, settings.ib_tc, settings.nthreads) == (None, None, None)
    assert read_settings({"NCCL_IB_GID_INDEX": "-1"}, release="2.18").ib_gid_index == -1


def test_unknown_variables_are_named_with_the_nearest() -> None:
    found = notes(read_settings({"NCCL_IB_HAC": "mlx5_0", "NCCL_RAS_ENABLE": "0", "NCCL_QQQQQ": "1"}))
    assert "did you mean 'NCCL_IB_HCA'" in found["NCCL_IB_HAC"]
    assert found["NCCL_RAS_ENABLE"] == "has no effect in the twin"
    assert found["NCCL_QQQQQ"] == "is no variable of NCCL"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("LOC", PathType.LOC), ("NVL", PathType.NVL), ("PIX", PathType.PIX), ("PXB", PathType.PXB),
        ("PHB", PathType.PHB), ("SYS", PathType.SYS), ("0", PathType.LOC), ("1", PathType.PIX),
        ("2", PathType.PXB), ("3", PathType.PHB), ("4", PathType.SYS), ("9", PathType.SYS),
    ],
)  # fmt: skip
def test_levels_by_name_and_by_the_old_numbers(text: str, level: PathType) -> None:
    settings = read_settings({"NCCL_P2P_LEVEL": text, "NCCL_NET_GDR_LEVEL": text})
    assert (settings.p2p_level, settings.net_gdr_level, settings.notes) == (level, level, ())


def test_a_level_in_lower_case_is_skipped_and_named() -> None:
    settings = read_settings({"NCCL_P2P_LEVEL": "nvl"})
    assert settings.p2p_level is None
    assert "did you mean 'NVL'" in notes(settings)["NCCL_P2P_LEVEL"]


def test_p2p_disable_counts_only_as_one_and_before_the_level() -> None:
    assert read_settings({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}).p2p_limit == PathType.LOC
    assert read_settings({"NCCL_P2P_DISABLE": "2", "NCCL_P2P_LEVEL": "SYS"}).p2p_limit == PathType.SYS
    assert read_settings({}).p2p_limit is None


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("mlx5_1", {"mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}),
        ("=mlx5_1", {"mlx5_1:1", "mlx5_1:2"}),
        ("=mlx5_1:2", {"mlx5_1:2"}),
        ("^mlx5_1", {"mlx5_0:1"}),
        ("^=mlx5_1:1,mlx5_10", {"mlx5_0:1", "mlx5_1:2"}),
        ("mlx5_0,mlx5_10:1", {"mlx5_0:1", "mlx5_10:1"}),
        ("mlx4", set()),
        ("=mlx5_1:1:0:3", {"mlx5_1:1"}),
    ],
)
def test_lists_of_adapters(text: str, allowed: set[str]) -> None:
    there = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1)]
    assert {f"{name}:{port}" for name, port in there if device_filter(text).allows(name, port)} == allowed


def test_an_entry_of_a_list_may_carry_rail_and_plane() -> None:
    entry = device_filter("=mlx5_0:1:0:2,mlx5_1::1").entry("mlx5_1", 1)
    assert entry is not None
    assert (entry.rail, entry.plane, entry.port) == (1, None, None)


def allowed(text: str, release: str, collective: str) -> set[str]:
    chosen = select(text, ALGORITHMS, release=version(release), key="NCCL_ALGO")
    return {name for name in ALGORITHMS if chosen.allows(collective, name)}


def test_algorithms_per_collective() -> None:
    text = "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:^ring"
    assert allowed(text, "2.24", "AllGather") == {"Ring", "CollNetDirect"}
    assert allowed(text, "2.24", "AllReduce") == {"Tree", "CollNetDirect"}
    assert allowed(text, "2.24", "Broadcast") == set(ALGORITHMS) - {"Ring"}
    only = select("allreduce:tree", ALGORITHMS, release=version("2.27"), key="NCCL_ALGO")
    assert only.allows("AllGather", "Ring") is None
    assert only.allows("AllReduce", "Ring") is False


def test_algorithms_before_2_24_hold_for_all() -> None:
    assert {frozenset(allowed("^Tree,NVLS", "2.21", c)) for c in COLLECTIVES} == {
        frozenset(ALGORITHMS) - {"Tree", "NVLS"}
    }
    settings = read_settings({"NCCL_ALGO": "allreduce:tree"}, release="2.21.5")
    assert settings.algo is not None
    assert not any(any(row) for row in settings.algo.allowed)
    assert "skips" in notes(settings)["NCCL_ALGO"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rign", "did you mean 'Ring'"),
        ("allreduce:rign", "did you mean 'Ring'"),
        ("alreduce:ring", "did you mean 'AllReduce'"),
        ("ring;tree", "expected a collective before it"),
    ],
)
def test_what_nccl_refuses_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read_settings({"NCCL_ALGO": text}, release="2.24.3")
    assert str(raised.value).startswith("NCCL_ALGO: got ")
    assert "\n" not in str(raised.value)


def test_subsystems() -> None:
    assert read_settings({}).debug_subsys == DEFAULT_SUBSYSTEMS
    assert read_settings({"NCCL_DEBUG_SUBSYS": "init,Net"}).debug_subsys == {"INIT", "NET"}
    without = read_settings({"NCCL_DEBUG_SUBSYS": "^INIT"}).debug_subsys
    assert "NET" in without
    assert "INIT" not in without
    assert "GRAPH" in read_settings({"NCCL_DEBUG_SUBSYS": "ALL"}).debug_subsys


def test_a_file_gives_way_to_the_environment(tmp_path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text(
        "# ours\nNCCL_IB_TIMEOUT=22\r\nNCCL_ALGO=Ring\nNCCL_ALGO=Tree\nno line\nNCCL_IB_RETRY_CNT=3\nPATH=/x\n"
    )
    settings = read_settings({"NCCL_IB_RETRY_CNT": "1", "NCCL_CONF_FILE": str(conf)})
    assert (settings.ib_timeout, settings.ib_retry_cnt, settings.notes) == (22, 1, ())
    assert settings.algo is not None
    assert settings.algo.allows("AllReduce", "Ring")
    assert ("NCCL_IB_TIMEOUT", "22") in settings.given
    with pytest.raises(ConfigError, match="no such file"):
        read_settings({"NCCL_CONF_FILE": str(tmp_path / "none")})


def test_a_spec_refuses_what_is_no_variable() -> None:
    assert from_mapping({"NCCL_IB_DISABLE": True, "NCCL_ALGO": "Ring"}).ib_disable == 1
    with pytest.raises(ConfigError, match=r"x\.yaml:3 NCCL_IB_HAC: .*did you mean 'NCCL_IB_HCA'"):
        from_mapping({"NCCL_IB_HAC": "mlx5"}, file="x.yaml", line=3)
    with pytest.raises(ConfigError, match="expected text or a whole number"):
        from_mapping({"NCCL_IB_TC": [1]})


def attempt(environment: dict[str, str], release: str) -> tuple[Settings | None, ConfigError | None]:
    try:
        return read_settings(environment, release=release), None
    except ConfigError as error:
        return None, error


@given(
    st.dictionaries(
        st.one_of(st.sampled_from(VARIABLES), st.from_regex(r"\ANCCL_[A-Z_]{0,12}\Z")),
        st.text(st.characters(exclude_characters="\0"), max_size=30),
        max_size=6,
    ).filter(lambda d: "NCCL_CONF_FILE" not in d),
    st.sampled_from(["2.18.3", "2.21.5", "2.24.3", "2.30.7"]),
)
def test_any_environment_is_settings_or_one_clear_line(environment: dict[str, str], release: str) -> None:
    settings, error = attempt(environment, release)
    if settings is None:
        assert error is not None
        assert len(str(error).splitlines()) == 1
        assert error.key in environment
        return
    for name in VARIABLES:
        value, default = getattr(settings, name[5:].lower()), getattr(Settings, name[5:].lower())
        if name[5:].lower() not in READERS and default is not None:
            assert isinstance(value, int)
    for name in environment:
        named = name in VARIABLES or name in {note.variable for note in settings.notes}
        assert named

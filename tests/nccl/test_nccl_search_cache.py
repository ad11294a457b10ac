"""Channels are searched once: what the cache folder has is what a search would find, or it is searched again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.nccl_machines import twin_of

from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.search import search_cache as module
from fabrictwin.nccl.search.graph_search import Channels
from fabrictwin.nccl.search.search_cache import cached_channels


@pytest.fixture
def found() -> list[Channels]:
    return list(initialise(twin_of("dgx-h100", 2), 16).hosts.kinds[0].channels.values())


@pytest.fixture
def folder(found: list[Channels], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FABRICTWIN_CACHE", str(tmp_path))
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    return tmp_path / "channels"


def counting(answer: Channels) -> tuple[Callable[[], Channels], list[int]]:
    asked: list[int] = []

    def search() -> Channels:
        asked.append(1)
        return answer

    return search, asked


def test_what_was_found_comes_back_the_same(folder: Path, found: list[Channels]) -> None:
    for number, channels in enumerate(found):
        search, asked = counting(channels)
        assert [cached_channels(str(number), search) for _ in range(3)] == [channels] * 3
        assert len(asked) == 1
        assert all(type(row) is tuple for row in cached_channels(str(number), search).intra)
    assert len(list(folder.iterdir())) == len(found)


def test_another_question_or_other_code_is_searched_anew(
    folder: Path, found: list[Channels], monkeypatch: pytest.MonkeyPatch
) -> None:
    search, asked = counting(found[0])
    cached_channels("one", search)
    cached_channels("another", search)
    monkeypatch.setattr(module, "_code", lambda: "other code")
    cached_channels("one", search)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"pattern": 77}', '{"pattern": 1e999}', "[" * 100_000, "\x00"]
)
def test_a_damaged_file_is_searched_anew(content: str, folder: Path, found: list[Channels]) -> None:
    search, asked = counting(found[0])
    cached_channels("one", search)
    (path,) = folder.iterdir()
    path.write_text(content)
    assert cached_channels("one", search) == found[0]
    assert cached_channels("one", search) == found[0]
    assert len(asked) == 2


def test_what_cannot_be_kept_serves_this_process_alone(
    tmp_path: Path, found: list[Channels], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FABRICTWIN_CACHE", str(tmp_path / "file"))
    search, asked = counting(found[0])
    assert [cached_channels("kept nowhere", search) for _ in range(2)] == [found[0]] * 2
    assert len(asked) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_without_the_jit_the_code_runs(
    folder: Path, found: list[Channels], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    search, asked = counting(found[0])
    assert [cached_channels("one", search) for _ in range(2)] == [found[0]] * 2
    assert len(asked) == 2
    assert not folder.exists()


def test_the_name_follows_all_code_that_searches():
    """Files of NCCL, or of the kernels of channels, that a searching file imports search too."""
    found = module.sources()
    imported = {
        name
        for source in found
        for name in re.findall(r"from fabrictwin\.(nccl\.\w+\.\w+|kernel\.nccl\.\w+) import", source.read_text())
    }
    assert {"kernel.nccl.channel_links", "kernel.nccl.channel_order", "nccl.search.graph_search"} <= imported
    assert imported <= {".".join(source.with_suffix("").parts[-3:]) for source in found}

"""Data that comes with packages: what is kept of it between runs is what its file says."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from fabrictwin.base import yamlfile
from fabrictwin.base.yamlfile import read_bundled, read_yaml

BUNDLED = [
    (package, file.name)
    for package in (
        "fabrictwin.catalog",
        "fabrictwin.nccl",
        "fabrictwin.diagnosis.causes",
        "fabrictwin.diagnosis.mechanisms",
    )
    for file in resources.files(package).joinpath("data").iterdir()
    if file.name.endswith(".yaml")
]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FABRICTWIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.mark.parametrize(("package", "file"), BUNDLED)
def test_what_is_kept_is_what_the_file_says(package, file, cache):
    text = resources.files(package).joinpath("data", file).read_text(encoding="utf-8")
    expected, _ = read_yaml(text, file)
    assert read_bundled(package, file) == expected
    (kept,) = cache.iterdir()
    again = read_bundled(package, file)
    assert again == expected
    assert repr(again) == repr(expected)  # 1 and 1.0 are equal
    assert [*cache.iterdir()] == [kept]


def test_it_is_read_from_what_is_kept_and_anew_when_its_file_changes(cache, tmp_path, monkeypatch):
    (tmp_path / "some" / "data").mkdir(parents=True)
    (tmp_path / "some" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "some" / "data" / "it.yaml"
    file.write_text("a: 1\n")
    assert read_bundled("some", "it.yaml") == {"a": 1}
    (kept,) = cache.iterdir()
    kept.write_text('{"a": 5}')
    assert read_bundled("some", "it.yaml") == {"a": 5}
    kept.write_text('{"a": ')  # damaged
    assert read_bundled("some", "it.yaml") == {"a": 1}
    assert json.loads(kept.read_text()) == {"a": 1}
    file.write_text("a: 2\n")
    assert read_bundled("some", "it.yaml") == {"a": 2}


def test_it_is_read_where_nothing_can_be_kept(cache, tmp_path, monkeypatch, capsys):
    cache.parent.write_text("a file")
    assert read_bundled("fabrictwin.catalog", "pcie.yaml")
    monkeypatch.setattr(yamlfile, "cache_base", lambda: None)
    assert read_bundled("fabrictwin.catalog", "pcie.yaml")
    assert capsys.readouterr() == ("", "")

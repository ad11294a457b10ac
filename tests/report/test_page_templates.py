"""Compiled templates are kept between processes, and are no condition of a page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from jinja2 import Environment

from fabrictwin.report.page import page_environment


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("FABRICTWIN_CACHE", str(tmp_path / "cache"))
    return page_environment.__wrapped__("fabrictwin.report")


def test_a_compiled_template_is_kept(environment: Environment, tmp_path: Path):
    environment.get_template("report.html.j2")
    assert list((tmp_path / "cache" / "templates").rglob("*.cache"))


def test_a_page_comes_out_where_its_template_cannot_be_kept(environment: Environment, tmp_path: Path):
    shutil.rmtree(tmp_path / "cache")
    assert environment.get_template("report.html.j2")
    assert not (tmp_path / "cache").exists()

"""Every command on every page runs: lines that start with `$ ` in ```console blocks, in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    return [
        line[2:].strip()
        for block in _BLOCK.findall(page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


def test_pages_link_to_files_that_exist():
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken


@pytest.mark.second
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_on_the_page_run(page, tmp_path):
    needed = ("opensm", "iblinkinfo", "ib_write_bw", "ibv_devinfo", "gcc")
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if page.stem == "setup" and missing:
        pytest.skip(f"not installed: {', '.join(missing)} (see docs/up.md and docs/live.md)")
    for folder in ("examples", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    bin_folder = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
    for command in commands(page):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

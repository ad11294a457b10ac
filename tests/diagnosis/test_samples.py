"""Samples of what real clusters printed, kept beside the checkout: the right cause first, no alarm on clean ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cluster_prints import PREFIXES, coloured, interleaved, prefixed, renamed

from fabrictwin.diagnosis.diagnose import diagnose, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def samples(shared: Path) -> Path:
    folder = shared / "data/doctor"
    if not (folder / "index.csv").exists():
        pytest.skip("needs the samples of what clusters print beside the checkout")
    return folder


def test_samples_score_as_they_should(samples: Path):
    command = [sys.executable, str(ROOT / "benchmarks/doctor_score.py"), "--samples", str(samples), "--wrong"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    faults = re.search(r"faults (\d+): right cause first (\d+), among the first three (\d+)", done.stdout)
    clean = re.search(r"clean (\d+): errors (\d+), warnings (\d+)", done.stdout)
    assert faults is not None
    assert clean is not None
    whole, first, three = (int(number) for number in faults.groups())
    assert first >= 0.8 * whole, done.stdout
    assert three >= 0.9 * whole, done.stdout
    many, _, warned = (int(number) for number in clean.groups())
    assert warned <= 0.1 * many, done.stdout


def test_samples_named_clean_raise_no_error(samples: Path):
    for file in sorted(samples.glob("*-nccl-tests.txt")):
        found = diagnose([file])
        assert all(one.severity < Severity.WARNING for one in found.findings), file.name


LONGEST = 100_000
FEW_LINES = 3  # of which nobody can tell what a launcher put before them


def _told(text: str) -> tuple[str, list[tuple[str, Severity]]]:
    found = judged(read_text(text), twin=False)
    return found.verdict, [(one.id, one.severity) for one in found.findings if one.severity >= Severity.WARNING]


@pytest.fixture(scope="module")
def told(samples: Path) -> list[tuple[str, str, Any]]:
    """Name and text of each sample, and the verdict on it as it is."""
    texts = [(path.name, path.read_text(encoding="utf-8", errors="replace")) for path in samples.glob("0*")]
    return [(name, text[:LONGEST], _told(text[:LONGEST])) for name, text in sorted(texts)]


@pytest.mark.parametrize("launcher", PREFIXES)
def test_the_verdict_on_each_sample_stays_behind_a_launchers_prefixes(told, launcher):
    for name, text, verdict in told:
        if text.count("\n") > FEW_LINES:
            assert (name, _told(coloured(prefixed(text, launcher)))) == (name, verdict)


@pytest.mark.parametrize("disturbed", [renamed, lambda text: interleaved(text, 5)])
def test_the_verdict_on_each_sample_stays_when_it_is_disturbed(told, disturbed):
    for name, text, verdict in told:
        assert (name, _told(disturbed(text))) == (name, verdict)

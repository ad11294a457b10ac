"""Samples of what real clusters printed, kept beside the checkout: the right cause first, no alarm on clean ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster_prints import coloured, prefixed

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


def test_a_sample_says_the_same_in_a_launcher_s_colours_and_prefixes(samples: Path):
    for file in sorted(samples.glob("*.txt")):
        text = file.read_text(errors="replace")
        if len(text) > 200_000 or text.lstrip()[:1] in "{[":
            continue
        before = judged(read_text(text), twin=False)
        for launcher in ("mpirun", "kubernetes"):
            after = judged(read_text(coloured(prefixed(text, launcher))), twin=False)
            assert [one.id for one in after.findings] == [one.id for one in before.findings], (file.name, launcher)


def test_samples_named_clean_raise_no_error(samples: Path):
    for file in sorted(samples.glob("*-nccl-tests.txt")):
        found = diagnose([file])
        assert all(one.severity < Severity.WARNING for one in found.findings), file.name

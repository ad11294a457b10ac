"""doctor, expect and collect on the command line: exit codes, JSON, pages, scripts that run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from support.cluster_prints import nccl_log

import fabrictwin as ft
from fabrictwin.base.errors import ConfigError
from fabrictwin.cli import main
from fabrictwin.diagnosis.collection import script


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    file = tmp_path / "sick.log"
    file.write_text(nccl_log(fault="no-gpudirect-module"))
    return file


def test_findings_are_exit_code_one_with_evidence_and_fix(sick: Path, capsys):
    assert main(["doctor", str(sick)]) == 1
    out = capsys.readouterr().out
    assert "gdr-off" in out
    assert "modprobe nvidia-peermem" in out
    assert f"{sick}:" in out


def test_a_healthy_log_is_exit_code_zero(tmp_path: Path, capsys):
    file = tmp_path / "well.log"
    file.write_text(nccl_log())
    assert main(["doctor", str(file)]) == 0
    assert "nothing wrong" in capsys.readouterr().out


def test_a_missing_file_is_exit_code_two(tmp_path: Path, capsys):
    assert main(["doctor", str(tmp_path / "none")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_json_and_the_face_say_the_same(sick: Path, capsys):
    assert main(["doctor", str(sick), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data == json.loads(json.dumps(ft.doctor(sick).as_data()))
    (finding,) = [one for one in data["findings"] if one["id"] == "gdr-off"]
    assert set(finding) >= {"severity", "object", "evidence", "seen", "expected", "cause", "fix", "confidence"}


def test_the_page_holds_the_findings_and_escapes_what_files_say(tmp_path: Path, capsys):
    file = tmp_path / "x.log"
    file.write_text("<script>:1:2 [0] x.cc NCCL WARN Duplicate GPU detected <script>alert(1)</script>\n"
                    "a:1:2 [0] x.cc NCCL WARN Duplicate GPU detected <script>alert(1)</script>\n")  # fmt: skip
    page = tmp_path / "page.html"
    assert main(["doctor", str(file), "--html", str(page)]) == 1
    text = page.read_text()
    assert "duplicate-gpu" in text
    assert "<script>alert" not in text


def test_hardware_can_be_named(sick: Path):
    found = ft.doctor(sick, hardware="dgx-h100", hosts=2, fabric="infiniband")
    assert found.hardware is not None
    assert found.hardware.confidence == 1.0
    with pytest.raises(ConfigError, match="did you mean 'dgx-h100'"):
        ft.doctor(sick, hardware="dgx-h10")


def test_expected_bandwidths_as_table_yaml_and_checks(capsys):
    ask = ["expect", "dgx-a100", "--hosts", "1", "--sizes", "1G"]
    assert main(ask) == 0
    assert "all_reduce_perf" in capsys.readouterr().out
    assert main([*ask, "--format", "yaml"]) == 0
    data = yaml.safe_load(capsys.readouterr().out)
    (row,) = [one for one in data["expect"] if one["test"] == "all_reduce_perf"]
    assert row["at_least"] == pytest.approx(0.9 * row["expected"], rel=1e-3)
    assert main([*ask, "--format", "aznhc"]) == 0
    assert f"check_nccl_allreduce {row['at_least']:.1f}" in capsys.readouterr().out
    assert main(["expect", "dgx-a100", "--tests", "all_reduce"]) == 2


def test_the_script_gathers_into_one_archive_that_the_doctor_reads(tmp_path: Path, capsys):
    path = tmp_path / "collect.sh"
    assert main(["collect", "--out", str(path)]) == 0
    text = path.read_text().replace("sleep 10", "sleep 0")
    done = subprocess.run(["sh", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True)
    (archive,) = tmp_path.glob("doctor-*.tar")
    assert done.stdout.strip() == str(archive)
    found = ft.doctor(archive)
    assert any("limits.txt" in name for name, _ in found.evidence.read)


def test_what_a_host_has_not_is_no_fault_of_it(tmp_path: Path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "sh",
        "mktemp",
        "hostname",
        "mkdir",
        "cat",
        "tar",
        "rm",
        "date",
        "timeout",
        "grep",
        "df",
        "wc",
        "env",
    ):
        (tools / name).symlink_to(shutil.which(name) or name)
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    subprocess.run(["sh", "-c", script()], cwd=tmp_path, env=environment, capture_output=True, check=True)
    (archive,) = tmp_path.glob("doctor-*.tar")
    assert [finding.id for finding in ft.doctor(archive).findings if finding.severity == "error"] == []
    with tarfile.open(archive) as tar:
        (absent,) = [name for name in tar.getnames() if name.endswith("absent.txt")]
        listed = tar.extractfile(absent)
        assert listed is not None
        names = listed.read().decode().split()
    assert {"ibstat", "nvidia-smi", "lspci"} <= set(names)
    assert len(names) == len(set(names))


def test_hosts_of_the_script_are_checked():
    assert "for host in a b.c; do" in script(("a", "b.c"))
    with pytest.raises(ConfigError, match="name of a host"):
        script(("a; rm -rf /",))


def test_the_standard_input_is_read_like_a_file_however_little_is_written_at_once():
    lines = [
        "[12.0] a line\n",
        *["[1.0] NVRM: Xid (PCI:0000:3a:00): 79, pid=1, GPU has fallen off the bus.\n"] * 9,
    ]
    command = [sys.executable, "-m", "fabrictwin", "doctor", "-", "--no-twin", "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asked:
        assert asked.stdin is not None
        for line in lines:
            asked.stdin.write(line)
            asked.stdin.flush()
        printed, _ = asked.communicate()
    found = json.loads(printed)["findings"][0]
    assert found["id"] == "gpu-lost"
    assert found["evidence"][0]["file"] == "<stdin>"
    assert asked.returncode == 1

"""What a newcomer mistypes, and what is said then: the key, its line, and what would be right."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest

from fabrictwin.cli import COMMANDS, main, root
from fabrictwin.cli.options import WRITTEN

EXAMPLES = Path(__file__).parents[2] / "examples"
LAPTOP = str(EXAMPLES / "laptop.yaml")
SERVER = EXAMPLES / "serve-llama-3-70b.yaml"


def said(capsys, *arguments: str, code: int = 2) -> str:
    assert main(arguments) == code
    return capsys.readouterr().err


@pytest.fixture
def server(tmp_path):
    """The server's example with something else in it, as a file."""

    def changed(before: str, after: str) -> str:
        text = SERVER.read_text()
        assert before in text
        path = tmp_path / "server.yaml"
        path.write_text(text.replace(before, after).replace("models/", f"{EXAMPLES}/models/"))
        return str(path)

    return changed


@pytest.mark.parametrize("command", ["run", "jitter"])
def test_a_server_given_to_a_command_for_jobs(capsys, command):
    error = said(capsys, command, str(SERVER))
    assert "workload.serving: got a server, expected workload.training; fabrictwin serve takes this one" in error
    assert f"{SERVER}:13 " in error


def test_a_server_is_planned_for_bounds_on_its_latencies(capsys):
    assert said(capsys, "plan", str(SERVER)) == "error: --ttft: expected --ttft, --tpot or both for a server\n"


def test_a_job_given_to_the_command_for_servers(capsys):
    assert (
        "laptop.yaml:13 workload.training: got a training job, expected workload.serving; fabrictwin run"
        in said(capsys, "serve", LAPTOP)
    )


def test_a_release_without_quotes(capsys, server):
    path = server('"0.19"', "0.19")
    assert "workload.serving.release: got 0.19, expected text in quotes: without them YAML reads a number" in said(
        capsys, "serve", path
    )


def test_a_length_that_is_too_short_has_its_line(capsys, server):
    path = server("max_model_len: 8192", "max_model_len: 1200")
    assert f"{path}:17 workload.serving.max_model_len: got 1200, and the longest request" in said(
        capsys, "serve", path
    )


@pytest.mark.parametrize("seed", ["-1", "x", "1.5", str(2**63), "9" * 5000])
def test_a_seed_is_wrong_in_the_same_words_everywhere(capsys, seed):
    where = {
        "run": [LAPTOP],
        "serve": [str(SERVER)],
        "jitter": [LAPTOP],
        "traffic": ["flows.cm", "--cluster", LAPTOP],
        "routes": ["check", LAPTOP],
    }
    errors = {said(capsys, command, *rest, "--seed", seed) for command, rest in where.items()}
    assert len(errors) == 1
    assert "--seed: got " in errors.pop()


@pytest.mark.parametrize(
    ("release", "typed", "meant"),
    [("2.27.3", "Rign", "Ring"), ("2.27.3", "alreduce:Ring", "AllReduce"), ("2.27.3", "tre", "Tree")],
)
def test_algorithms_are_suggested_as_nccl_writes_them(capsys, monkeypatch, release, typed, meant):
    monkeypatch.setenv("NCCL_ALGO", typed)
    error = said(capsys, "nccl-tests", "all_reduce_perf", "--cluster", LAPTOP, "--nccl-version", release)
    assert f"did you mean '{meant}'?" in error


def test_a_list_of_programs_that_is_not_there(capsys):
    assert said(capsys, "exec", "--cluster", LAPTOP, "--hosts", "/nope") == "error: /nope: no such file\n"


def test_the_twins_clock_is_refused_where_the_counter_does_not_trap(capsys, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    error = said(capsys, "exec", "--cluster", LAPTOP, "--clock", "virtual", "--", "true")
    assert error == "error: --clock: got 'virtual' on aarch64, expected it on x86-64\n"


def test_lids_that_cannot_be_kept_are_refused_before_the_sweep(capsys):
    assert "/nope/lids: cannot be written: its folder is not there" in said(
        capsys, "sm", LAPTOP, "--guid2lid", "/nope/lids"
    )


def test_titles_of_examples_are_whole(capsys):
    assert main(["init", "--list"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "(table 3, bf16, torch.compile): two sequences a GPU, selective checkpointing of operations." in shown
    assert "table 4 of the Llama 3 paper (arXiv 2407.21783). llama-3-70b" in shown


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_full_disk_is_no_mistake_of_who_typed(capsys):
    error = said(capsys, "routes", "dump", LAPTOP, "--out", "/dev/full", code=1)
    assert "cannot be written: No space left on device" in error


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_full_disk_under_what_serve_writes(capsys, server):
    path = server("num_prompts: 400", "num_prompts: 4")
    assert "/dev/full: cannot be written" in said(capsys, "serve", path, "--csv", "/dev/full", code=1)


def _all_commands() -> list[str]:
    """Every command, those of groups with the group's name."""
    context = click.Context(root)
    names = []
    for name in COMMANDS:
        command = root.get_command(context, name)
        inner = list(command.commands) if isinstance(command, click.Group) else [""]
        names += [f"{name} {one}".strip() for one in inner]
    return names


def _written() -> list[tuple[str, str]]:
    """Commands and their options that name a file to be written."""
    context = click.Context(root)
    found = []
    for name in _all_commands():
        command = root
        for part in name.split():
            command = command.get_command(context, part)
        found += [(name, option.opts[-1]) for option in command.params if option.type is WRITTEN]
    return found


@pytest.mark.parametrize(("command", "option"), _written())
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(capsys, command, option, tmp_path):
    for path in (tmp_path / "none" / "file", tmp_path, tmp_path / ("x" * 300)):
        assert "cannot be written: " in said(capsys, *command.split(), option, str(path))


def test_every_command_that_computes_long_looks_at_its_file_first():
    assert {name for name, _ in _written()} >= {
        "plan", "validate training", "validate accuracy", "sweep", "diff", "claims", "jitter", "campaign", "serve",
        "doctor", "nccl-tests", "routes dump", "topology export", "run", "traffic",
    }  # fmt: skip


@pytest.mark.parametrize("host", ["9" * 5000, ".", "a" * 64 + ".example"])
def test_a_page_is_served_at_a_name_that_can_be_asked_for(capsys, host):
    assert "--host: got " in said(capsys, "ui", "--host", host)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("command", _all_commands())
def test_what_is_typed_is_quoted_in_part_and_a_name_too_long_is_no_traceback(
    capsys, command, tokens, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    long = "9" * 5000
    error = said(capsys, *command.split(), *[long] * tokens)
    assert error.startswith("error: ")
    assert len(error) < 1000
    assert long[:500] not in error


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("expect", "dgx-h100", "--hosts", "9" * 5000), "--hosts"),
        (("expect", "dgx-h100", "--hosts", "1,x"), "--hosts"),
        (("expect", "dgx-h100", "--hosts", "٣"), "--hosts"),
        (("expect", "dgx-h100", "--hosts", "0"), "--hosts"),
        (("expect", "dgx-h100", "--nccl-version", "9" * 5000), "nccl version"),
        (("doctor", LAPTOP, "--hardware", "dgx-h100", "--nccl-version", "2"), "nccl version"),
        (("doctor", LAPTOP, "--hosts", "4"), "hardware"),
        (("doctor", LAPTOP, "--nccl-version", "2.27.3"), "hardware"),
        (("doctor", LAPTOP, "--hardware", "9" * 5000), "hardware"),
    ],
)
def test_options_on_hardware_are_read_before_anything_runs(capsys, arguments, key):
    error = said(capsys, *arguments)
    assert error.startswith(f"error: {key}: ")
    assert len(error) < 1000


def test_a_job_to_expect_is_read_before_anything_runs(capsys, monkeypatch):
    monkeypatch.setattr(
        "fabrictwin.diagnosis.expectation.figures.expected_of", lambda *_, **__: pytest.fail("ran")
    )
    assert said(capsys, "expect", "dgx-h100", "--spec", "no.yaml") == "error: no.yaml: no such file\n"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/null", path), lambda path: None])
def test_the_page_opens_with_a_file_or_a_folder_alone(capsys, tmp_path, make):
    pytest.importorskip("starlette", reason="the extra web is not installed")
    make(tmp_path / "spec")
    error = said(capsys, "ui", str(tmp_path / "spec"), "--port", "0")
    assert "expected a spec, or a folder of specs" in error or "no such file" in error

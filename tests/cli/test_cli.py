"""The command line: what it answers, how errors read, which exit code they have."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.specs import TWO_BOXES

import fabrictwin
from fabrictwin import cli
from fabrictwin.base.errors import InvariantError, SimulatedError
from fabrictwin.cli import main
from fabrictwin.cluster.spec import spec


def python(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **settings,  # type: ignore[call-overload]
    )


def test_help_lists_every_command_that_exists(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, (module, _) in cli.COMMANDS.items():
        exists = (Path(cli.__file__).parent / f"{module.replace('.', '/')}.py").exists()
        assert (f"\n  {name} " in out) == exists


def test_help_imports_no_command_and_nothing_heavy():
    code = (
        "import sys; from fabrictwin.cli import main; main(['--help']);"
        "print([m for m in sys.modules if m.startswith('fabrictwin.cli.')"
        " or m in ('numpy', 'numba', 'pydantic', 'yaml', 'rich')], file=sys.stderr)"
    )
    assert python("-c", code).stderr.strip() == "[]"


@pytest.mark.parametrize("command", ["run", "catalog", "schema"])
def test_help_of_a_command_needs_neither_numba_nor_numpy(command):
    code = (
        f"import sys; from fabrictwin.cli import main; main(['{command}', '--help']);"
        "print([m for m in sys.modules if m in ('numpy', 'numba')], file=sys.stderr)"
    )
    done = python("-c", code)
    assert done.stderr.strip() == "[]"
    assert "install-completion" not in done.stdout


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fabrictwin {fabrictwin.__version__}\n"


def test_it_runs_as_a_module():
    done = python("-m", "fabrictwin", "--version")
    assert (done.returncode, done.stdout) == (0, f"fabrictwin {fabrictwin.__version__}\n")


def test_without_arguments_it_shows_its_help(capsys):
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rum", "x"], "No such command 'rum', did you mean 'run' (see 'fabrictwin --help')"),
        (["run", "--fidelty", "flow", "x"], "--fidelity"),
        (["run", "--fidelity", "exact", "x"], "'exact' is not one of 'packet', 'flow', 'analytic'"),
        (["run"], "Missing argument 'SPEC'"),
        (["run", "/nowhere/spec.yaml"], "/nowhere/spec.yaml: no such file"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(arguments, said, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert said.lower() in captured.err.lower()


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (
            SimulatedError("IBV_WC_RETRY_EXC_ERR", "host-0/mlx5_0"),
            1,
            "error: host-0/mlx5_0: IBV_WC_RETRY_EXC_ERR\n",
        ),
        (InvariantError("lost a byte"), 1, "error: internal: lost a byte\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exit_codes(raised, code, said, monkeypatch, capsys):
    def fails(*_arguments: object) -> None:
        raise raised

    monkeypatch.setattr(spec, "load_spec", fails)
    assert main(["run", "spec.yaml"]) == code
    assert capsys.readouterr().err == said


SPEC_FILE = str(Path(__file__).parents[2] / "examples" / "laptop.yaml")
PRINTING = [
    ["--help"],
    ["catalog", "list"],
    ["schema"],
    ["run", SPEC_FILE, "--dry-run"],
    ["topology", "export", SPEC_FILE],
    ["routes", "dump", SPEC_FILE],
    ["cost", SPEC_FILE],
    ["ibstat", SPEC_FILE],
    ["nccl-tests", "all_reduce_perf", "--cluster", SPEC_FILE, "--fidelity", "analytic", "-c", "0"],
]


def printing(arguments: list[str], stdout: object, unbuffered: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "fabrictwin", *arguments],
        stdout=stdout,  # type: ignore[call-overload]
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )


@pytest.mark.parametrize("arguments", PRINTING, ids=lambda a: a[0])
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.second
def test_a_reader_that_leaves_early_ends_it_by_sigpipe(arguments, unbuffered):
    """It ends without a word, like `seq 1000000` in `seq 1000000 | head -1`."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = printing(arguments, closed, unbuffered)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize("arguments", PRINTING, ids=lambda a: a[0])
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.second
def test_a_full_disk_is_one_line(arguments, unbuffered):
    with open("/dev/full", "w") as full:
        done = printing(arguments, full, unbuffered)
    assert (done.returncode, done.stderr) == (1, b"error: cannot write to stdout: No space left on device\n")


def complete(words: str, index: int) -> set[str]:
    environment = os.environ | {
        "_FABRICTWIN_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(index),
    }
    lines = python("-m", "fabrictwin", env=environment).stdout.split("\n")
    return {line.partition(",")[2] for line in lines if line}


def test_completion_knows_the_commands_and_options():
    assert {"run", "catalog", "schema"} <= complete("fabrictwin ", 1)
    assert complete("fabrictwin ca", 1) == {"calibrate", "campaign", "capture", "catalog"}
    assert complete("fabrictwin run --fi", 2) == {"--fidelity"}
    assert complete("fabrictwin run --fidelity ", 3) == {"packet", "flow", "analytic"}


@pytest.mark.second
def test_completion_knows_kinds_of_hosts_and_the_gpus_of_a_cluster():
    assert complete("fabrictwin expect dgx-h1", 2) == {"dgx-h100"}
    assert complete("fabrictwin doctor --hardware dgx-h1", 3) == {"dgx-h100"}
    before = f"fabrictwin topology path {SPEC_FILE}"
    assert complete(f"{before} ho", 4) == {f"host-{i}/gpu0" for i in range(4)}
    assert complete(f"{before} host-1/", 4) == {f"host-1/gpu{i}" for i in range(8)}
    assert complete(f"{before} host-1/gpu0 host-2/gpu7", 5) == {"host-2/gpu7"}
    assert complete("fabrictwin topology path nothing.yaml ho", 4) == set()


@pytest.mark.second
def test_completion_knows_the_catalog_and_the_hosts_of_a_cluster():
    assert complete("fabrictwin catalog show dgx-h1", 3) == {"dgx-h100"}
    assert {"gpu", "switch"} <= complete("fabrictwin catalog list ", 3)
    assert complete(f"fabrictwin ibstat {SPEC_FILE} --host ", 4) == {f"host-{i}" for i in range(4)}
    assert complete("fabrictwin compare x --fabrics tcp-100g,infiniband-h", 4) == {"tcp-100g,infiniband-hdr"}
    assert complete("fabrictwin ibstat /nowhere --host ", 4) == set()


def test_init_writes_examples_that_run_and_overwrites_nothing_else(tmp_path, capsys):
    assert main(["init", "laptop", "--into", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'laptop.yaml'}\n"
    assert main(["run", str(tmp_path / "new" / "laptop.yaml"), "--dry-run", "--fidelity", "analytic"]) == 0
    assert main(["init", "--into", str(tmp_path / "new")]) == 0, "equal files are no obstacle"
    (tmp_path / "new" / "laptop.yaml").write_text("mine")
    capsys.readouterr()
    assert main(["init", "--into", str(tmp_path / "new")]) == 2
    assert "laptop.yaml: is there already and differs" in capsys.readouterr().err
    assert main(["init", "lapdog", "--into", str(tmp_path)]) == 2
    assert "did you mean 'laptop'?" in capsys.readouterr().err
    assert main(["init", "--list"]) == 0
    assert "\npackets " in capsys.readouterr().out
    assert complete("fabrictwin init lap", 2) == {"laptop"}


def test_a_published_fabric_that_is_missing_says_where_it_is(capsys):
    assert main(["run", str(Path(SPEC_FILE).with_name("selene.yaml")), "--dry-run"]) == 2
    assert "is published as topo/selene.compute.txt in the GitHub repository" in capsys.readouterr().err


def test_completion_installs_and_prints_a_script(tmp_path):
    done = python("-m", "fabrictwin", "--install-completion", "bash", env=os.environ | {"HOME": str(tmp_path)})
    written = tmp_path / ".local/share/bash-completion/completions/fabrictwin"
    assert done.stdout.startswith(f"{written}, ")
    assert written.read_text() == python("-m", "fabrictwin", "--show-completion", "bash").stdout
    assert subprocess.run(["bash", "-n", str(written)], check=False).returncode == 0


def test_a_seed_out_of_range_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(TWO_BOXES))
    assert main(["run", "-", "--seed", "-1"]) == 2
    assert capsys.readouterr().err == "error: --seed: got '-1', expected a whole number from 0 to 2^63 - 1\n"


def test_stdin_errors_name_stdin_and_the_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("schema: 1\nnaem: x\n"))
    assert main(["run", "-"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: <stdin>:2 naem: ")
    assert "did you mean 'name'" in err


def test_garbage_is_looked_for_more_often_once_a_command_is_no_short_one():
    program = (
        "import gc, fabrictwin.cli as cli\n"
        "gc.set_threshold(cli._AT_START)\n"
        "gc.callbacks.append(cli._collect_from_now_on)\n"
        "kept = [[] for _ in range(cli._AT_START + 1000)]\n"
        "print(gc.get_threshold()[0] == cli._COLLECTED, cli._collect_from_now_on in gc.callbacks)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"

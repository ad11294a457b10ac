"""Which programs run where, and which cannot be reached by a preloaded library."""

from __future__ import annotations

import os
import platform
import select
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support import processes

from fabrictwin.base.errors import ConfigError
from fabrictwin.live import compiling, native_libraries
from fabrictwin.live.event_pipe import EventPipe
from fabrictwin.live.exec import launch, program_list
from fabrictwin.live.exec.preloadable import why_not

LAPTOP = str(Path(__file__).parents[2] / "examples" / "laptop.yaml")
HOSTS = ["host-0", "host-1"]
COMPILER = next((name for name in native_libraries.COMPILERS if shutil.which(name)), None)


def test_one_program_a_host() -> None:
    made = program_list.on_every_host("run --rank {rank} --of {size} '{host} x'", HOSTS)
    assert [each.host for each in made] == HOSTS
    assert made[1].command == ("run", "--rank", "1", "--of", "2", "host-1 x")


def test_a_file_of_programs(tmp_path: Path) -> None:
    path = tmp_path / "programs"
    path.write_text("# two\nhost-1: ib_write_bw -F\n\nhost-0: sh -c 'a; b'\n")
    made = program_list.from_file(path, HOSTS)
    assert [(each.host, each.command) for each in made] == [
        ("host-1", ("ib_write_bw", "-F")),
        ("host-0", ("sh", "-c", "a; b")),
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("host-2: x", r":1: got host 'host-2', expected one such as 'host-0'"),
        ("host-0: x\nnothing", r":2: got 'nothing', expected 'host: command'"),
        ("host-0: 'x", ":1: got"),
        ("host-0:", ":1: got an empty command"),
        ("", "got no line"),
    ],
)
def test_a_wrong_file_of_programs(tmp_path: Path, text: str, wanted: str) -> None:
    path = tmp_path / "programs"
    path.write_text(text)
    with pytest.raises(ConfigError, match=wanted):
        program_list.from_file(path, HOSTS)


def test_exit_codes() -> None:
    assert launch.exit_code([0, 0]) == 0
    assert launch.exit_code([0, 3, 4]) == 3
    assert launch.exit_code([-9, 0]) == 137


@pytest.mark.second
def test_a_file_of_programs_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"host-0: \xff")
    for name, wanted in (("none", "none: no such file$"), ("pipe", "nobody writes"), ("bytes", "not UTF-8")):
        with pytest.raises(ConfigError, match=wanted):
            program_list.from_file(tmp_path / name, HOSTS)


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    "command", ["exec sleep 600", "trap '' TERM; while true; do sleep 0.1; done", "sleep 600"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.second
def test_an_interrupted_command_has_the_signals_code(tmp_path: Path, command: str, number: int) -> None:
    """It ends its programs, also where only the command has the signal and not they, as from a terminal."""
    process = processes.start(
        tmp_path,
        *("-m", "fabrictwin", "exec", "--cluster", LAPTOP, "--engine", "analytic"),
        *("--", "sh", "-c", f"echo up; {command}"),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert process.wait(60) == 128 + number


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.second
def test_programs_end_with_the_command_that_is_killed(tmp_path: Path) -> None:
    process = processes.start(
        tmp_path,
        *("-m", "fabrictwin", "exec", "--cluster", LAPTOP, "--engine", "analytic"),
        *("--", "sh", "-c", "echo $$; exec sleep 600"),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    program = os.pidfd_open(int(process.stdout.readline()))
    process.kill()
    process.wait(60)
    assert select.select([program], [], [], 60)[0]


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="expected a program that can be found"):
        launch.check(["no-such-program-here"])


def test_scripts_and_dynamic_programs_can_be_reached(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexit 0\n")
    assert why_not(script) == ""
    assert why_not(Path(shutil.which("sh") or "/bin/sh").resolve()) == ""


def test_interpreters_of_interpreters_are_followed_as_linux_does(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text(f"#!{other}\n")
    other.write_text(f"#!{one}\n")
    assert why_not(one) == ""
    one.write_text(f"#!/{'x' * 3000}\n")  # longer than a name may be
    assert why_not(other) == ""


@pytest.mark.parametrize("length", [5, 7, 19, 40, 63])
def test_executables_that_are_cut_off(tmp_path: Path, length: int) -> None:
    program = tmp_path / "program"
    program.write_bytes(Path(sys.executable).resolve().read_bytes()[:length])
    assert "cut off" in why_not(program)


def test_headers_that_lie_beyond_any_file(tmp_path: Path) -> None:
    program = tmp_path / "program"
    head = bytearray(Path(sys.executable).resolve().read_bytes()[:4096])
    head[40:48] = b"\xff" * 8  # the offset of the sections
    program.write_bytes(head)
    assert why_not(program) == ""


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("flags", "source", "mode", "wanted"),
    [
        (["-nostdlib", "-static"], "void _start(void) {}", 0o755, "statically linked"),
        ([], "int main(void) { return 0; }", 0o4755, "changes its user"),
        ([], 'char id[] __attribute__((section(".go.buildinfo"))) = "x"; int main(void) { return 0; }', 0o755,
         "Go program"),
        ([], "int main(void) { return 0; }", 0o755, ""),
    ],
)  # fmt: skip
def test_programs_that_bypass_a_preload(
    tmp_path: Path, flags: list[str], source: str, mode: int, wanted: str
) -> None:
    text, program = tmp_path / "program.c", tmp_path / "program"
    text.write_text(source)
    assert COMPILER is not None
    subprocess.run([COMPILER, *flags, "-o", str(program), str(text)], check=True)
    program.chmod(mode)
    found = why_not(program)
    assert (wanted in found) if wanted else found == ""
    if wanted:
        with pytest.raises(ConfigError, match=f"{program.name} .*cannot be run on the twin"):
            launch.check([str(program)])


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize("bits", [0o777, 0o1777])
@pytest.mark.second
def test_libraries_that_somebody_else_could_have_planted_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    """A folder that others could write in serves nothing: its library is compiled anew, elsewhere."""
    monkeypatch.setenv("FABRICTWIN_CACHE", str(tmp_path))
    kept = native_libraries.library("preload")
    assert kept.parent == tmp_path / "live"
    assert native_libraries.library("preload") == kept
    kept.write_bytes(b"planted")
    kept.parent.chmod(bits)
    again = native_libraries.library("preload")
    assert again.parent != kept.parent
    assert again.read_bytes().startswith(b"\x7fELF")
    assert stat.S_IMODE(again.parent.stat().st_mode) == 0o700


def test_without_a_compiler_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ConfigError, match="apt-get install gcc libc6-dev"):
        native_libraries.library("preload")


def test_events_that_were_read_are_counted_and_others_taken_back() -> None:
    pipe = EventPipe(8)
    for owner in ("a", "b", "a", "b", "a"):
        pipe.write(owner.encode() * 8, owner)
    assert os.read(pipe.reader, 64) == b"a" * 8  # one record at a time, whatever room there is
    assert os.read(pipe.reader, 8) == b"b" * 8
    assert pipe.end("a") == 1  # one was read; two are taken back
    assert os.read(pipe.reader, 8) == b"b" * 8
    assert pipe.end("b") == 2
    os.set_blocking(pipe.reader, False)
    with pytest.raises(BlockingIOError):
        os.read(pipe.reader, 8)
    pipe.close()


@pytest.mark.second
@pytest.mark.parametrize(
    ("compiler", "machine"),
    [("gcc", {"x86_64": 62, "aarch64": 183}[platform.machine()]), ("aarch64-linux-gnu-gcc", 183)],
)
@pytest.mark.parametrize("name", compiling.LIBRARIES)
def test_a_library_compiles_without_a_warning(tmp_path: Path, name: str, compiler: str, machine: int) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"not installed: {compiler}")
    made = tmp_path / compiling.file_name(name)
    sources = Path(compiling.__file__).parent / name
    checked = subprocess.run(
        [compiler, "-Werror", *compiling.FLAGS, "-fsyntax-only", *sources.glob("*.c")], check=False
    )
    assert checked.returncode == 0
    assert compiling.compile_library(compiler, sources, made) == ""
    assert int.from_bytes(made.read_bytes()[18:20], "little") == machine  # e_machine of the ELF header


def test_what_a_compiler_complains_of_is_handed_back(tmp_path: Path) -> None:
    if COMPILER is None:
        pytest.skip("no C compiler")
    (tmp_path / "broken.c").write_text("int main(void) { return x; }\n")
    assert "undeclared" in compiling.compile_library(COMPILER, tmp_path, tmp_path / "made.so")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("engine", "code", "said"),
    [
        ("packet", 2, "run.packet.control: got control on InfiniBand, expected it only on Ethernet"),
        ("analytic", 0, "run.packet is not used: analytic has no packets"),
    ],
)
def test_packets_of_programs_are_those_of_the_spec(tmp_path: Path, engine: str, code: int, said: str) -> None:
    spec = tmp_path / "spec.yaml"
    network = "{technology: infiniband, switch: qm8700, topology: {kind: single-switch}}"
    spec.write_text(
        "schema: 1\nname: s\ncluster:\n  hosts: {type: pcie-box, count: 2}\n"
        f"  network: {network}\nrun: {{packet: {{control: dcqcn}}}}\n"
    )
    command = [
        sys.executable,
        "-m",
        "fabrictwin",
        "exec",
        "--cluster",
        str(spec),
        "--engine",
        engine,
        "--",
        "true",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr

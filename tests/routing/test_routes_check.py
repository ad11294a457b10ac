"""`fabrictwin routes` as a user types it."""

from __future__ import annotations

import json

import pytest

from fabrictwin.cli import main

SPEC = """\
schema: 1
cluster:
  hosts: {type: pcie-box, count: 16}
  network:
    technology: %s
    switch: %s
    topology: {kind: fat-tree, tiers: 2, radix: 8}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC % ("infiniband", "qm8700"))
    return path


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["routes", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_check_prints_a_verdict(capsys, spec):
    code, out, err = run(capsys, "check", spec)
    assert (code, err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith(" "))
    assert lines["tables"] == "dmodk, 1 virtual lane"
    assert lines["fabric"] == "6 switches, 16 adapters, 0 aggregation nodes"
    assert lines["reach"] == "all of 336 pairs"
    assert lines["hops"].startswith("1.60 on average; pairs of adapters: 48 at 0, 192 at 2; 0 not shortest")
    assert lines["shifts"] == (
        "congestion worst 1, worst on average 1.00, mean 1.000; 15 without any; 15 of 15 looked at"
    )
    assert lines["verdict"] == "sound"


def test_check_in_json_with_all_options(capsys, spec, tmp_path):
    roots = tmp_path / "roots"
    code, out, _ = run(
        capsys, "check", spec, "--json", "--engine", "shortest", "--lmc", 1, "--shifts", 3, "--random", 2
    )
    found = json.loads(out)
    assert (code, found["sound"], found["engine"]) == (0, True, "shortest")
    assert found["shifts"]["looked_at"] == 3
    assert found["random"]["looked_at"] == 2
    roots.write_text("0x1\n")
    code, _, err = run(capsys, "check", spec, "--engine", "updown", "--roots", roots)
    assert code == 2
    assert err == "error: roots: got 0x0000000000000001, expected the GUID of a switch of this fabric\n"


def test_hosts_order_is_another_order(capsys, tmp_path):
    # a host's adapters hang on eight leaves
    path = tmp_path / "dgx.yaml"
    path.write_text(
        "schema: 1\ncluster:\n  hosts: {type: dgx-a100, count: 6}\n  network:\n    technology: infiniband\n"
        "    switch: qm8700\n    topology: {kind: rail-optimised, leaf_down: 4, oversubscription: 2}\n"
    )
    shifts = []
    for order in ("tree", "hosts"):
        code, out, _ = run(capsys, "check", path, "--json", "--engine", "shortest", "--order", order)
        assert code == 0
        shifts.append(json.loads(out)["shifts"])
    assert shifts[0]["looked_at"] == shifts[1]["looked_at"] == 47
    assert shifts[0]["mean"] != shifts[1]["mean"]


def test_a_dump_is_read_judged_and_compared(capsys, spec, tmp_path):
    dump = tmp_path / "lfts.txt"
    assert run(capsys, "dump", spec, "--engine", "shortest", "--out", dump)[0] == 0
    code, out, _ = run(capsys, "dump", spec, "--engine", "shortest")
    assert code == 0
    assert out == dump.read_text()
    code, out, _ = run(capsys, "check", spec, "--tables", dump)
    assert code == 0
    assert out.startswith("tables      lfts.txt")
    code, out, _ = run(capsys, "diff", spec, "shortest", dump)
    assert code == 0
    assert "0 of 96 differ, on 0 switches" in out
    found = json.loads(run(capsys, "diff", spec, "auto", dump, "--json")[1])
    assert found["entries_changed"] > 0


def test_unsound_tables_are_exit_code_1(capsys, spec, tmp_path):
    dump = tmp_path / "lfts.txt"
    run(capsys, "dump", spec, "--out", dump)
    lines = dump.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "host-15" in line)
    lines[at] = lines[at][:7] + "039" + lines[at][10:]
    dump.write_text("\n".join(lines) + "\n")
    code, out, _ = run(capsys, "check", spec, "--tables", dump)
    assert code == 1
    assert "from leaf-0: the tables lead nowhere" in out
    assert out.splitlines()[-1].split() == ["verdict", "unsound"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "SPEC", "--engine", "minhops"), "did you mean 'minhop'?"),
        (("check", "SPEC", "--lmc", "9"), "'--lmc': 9 is not in the range 0<=x<=7"),
        (("check", "SPEC", "--tables", "SPEC"), "spec.yaml:1: got 'schema: 1', expected a switch"),
        (
            ("check", "SPEC", "--tables", "SPEC", "--lmc", "1"),
            "got options for an engine together with dumped tables",
        ),
        (("diff", "SPEC", "shortest", "missing"), "got 'missing', expected an engine (auto, balanced"),
        (("check", "SPEC", "--engine", "dmodk", "--weights", "W"), "W: no such file"),
        (("check", "ETHERNET"), "got a network of ethernet, expected infiniband"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, spec, tmp_path, arguments, message):
    ethernet = tmp_path / "ethernet.yaml"
    ethernet.write_text(SPEC % ("ethernet", "spectrum-4"))
    names = {"SPEC": spec, "ETHERNET": ethernet, "W": tmp_path / "W"}
    code, out, err = run(capsys, *(names.get(word, word) for word in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1

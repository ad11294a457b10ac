"""The runner of rdma-core's own tests on a folder of tests made here; what `pyverbs` is while it is installed."""

from __future__ import annotations

import ctypes
import gzip
import importlib
import subprocess
import sys
from types import SimpleNamespace as Record

import pytest
from support.clusters import boxes

from fabrictwin.base.errors import ConfigError
from fabrictwin.verbs import import_hook, rdma_core_tests
from fabrictwin.verbs.adapter import payload_placement, qp_checks
from fabrictwin.verbs.adapter.transport import requester
from fabrictwin.verbs.adapter.work_requests import SEND, SEND_INV, WRITE, WRITE_IMM
from fabrictwin.verbs.attributes import code_words, unsupported
from fabrictwin.verbs.pyverbs import dma_util, flow
from fabrictwin.verbs.rdma_core_tests import Outcome, report, run, share, unpack, write_stand_ins

TESTS = """
import unittest, sys
class One(unittest.TestCase):
    def test_passes(self):
        print("to be swallowed")
    def test_fails(self):
        self.assertEqual(1, 2)
    def test_breaks(self):
        raise KeyError("why")
    def test_skips(self):
        self.skipTest("Device memory is not supported")
    def test_skips_else(self):
        self.skipTest("no reason")
    def test_uses_pyverbs(self):
        import pyverbs.device
        from tests import base
        assert base.HERE and sys.argv == ["run_tests"]
        assert pyverbs.device.__name__ == "pyverbs.device"
"""


@pytest.fixture
def folder(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "base.py").write_text("HERE = True\n")
    (source / "args_parser.py").write_text("import argparse\nparser = argparse.ArgumentParser()\n")
    (source / "notes.txt").write_text("no test")
    (source / "test_pd.py.gz").write_bytes(gzip.compress(TESTS.encode()))
    (source / "test_mr.py").write_text("import what_nobody_has\n")
    (source / "test_unknown.py").write_text(TESTS)
    return source


def test_tests_are_copied_and_unpacked(folder, tmp_path):
    into = tmp_path / "into"
    into.mkdir()
    found = unpack(folder, into)
    assert found == into / "tests"
    assert sorted(path.name for path in found.iterdir()) == [
        "args_parser.py", "base.py", "test_mr.py", "test_pd.py", "test_unknown.py",
    ]  # fmt: skip
    assert (found / "test_pd.py").read_text() == TESTS
    for missing in ("base.py", "args_parser.py"):
        (folder / missing).rename(tmp_path / missing)
        again = tmp_path / f"again-{missing}"
        again.mkdir()
        with pytest.raises(ConfigError, match="expected rdma-core's folder `tests`"):
            unpack(folder, again)
        (tmp_path / missing).rename(folder / missing)


def test_stand_ins_answer_for_rdma_and_for_p_keys(tmp_path):
    write_stand_ins(tmp_path / "bin", ["mlx5_0", "mlx5_1"])

    def said(*command):
        return subprocess.run(
            [str(tmp_path / "bin" / command[0]), *command[1:]], capture_output=True, text=True
        ).stdout

    assert said("rdma", "link").strip() == (
        '[{"ifindex": 0, "ifname": "mlx5_0", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP"}, '
        '{"ifindex": 1, "ifname": "mlx5_1", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP"}]'
    )
    assert said("cat", "/sys/class/infiniband/mlx5_0/ports/1/pkeys/0") == "0xffff\n"
    (tmp_path / "x").write_text("else")
    assert said("cat", str(tmp_path / "x")) == "else"


def test_a_folder_is_run_module_by_module(folder, capsys):
    path, argv = list(sys.path), list(sys.argv)
    found = run(folder, boxes(2, "ethernet"), engine="analytic")
    assert capsys.readouterr().out == ""
    assert [one.module for one in found] == ["test_pd", "test_mr"]  # of those that it knows, in its order
    one, broken = found
    assert sorted(one.passed) == ["One.test_passes", "One.test_uses_pyverbs"]
    assert sorted(one.skipped) == [
        ("One.test_skips", "Device memory is not supported"), ("One.test_skips_else", "no reason"),
    ]  # fmt: skip
    assert [name for name, _ in one.failed] == ["One.test_fails"]
    assert [name for name, _ in one.errors] == ["One.test_breaks"]
    assert "AssertionError: 1 != 2" in one.failed[0][1]
    assert broken.errors == [("test_mr", "ModuleNotFoundError: No module named 'what_nobody_has'")]
    assert one.counted_skips == [("One.test_skips_else", "no reason")]
    assert (sys.path, sys.argv) == (path, argv)
    assert not {"args_parser", "tests", "tests.base", "pyverbs"} & set(sys.modules)
    assert share(found) == (2, 2 + 1 + 1 + 1 + 1, 1)
    (chosen,) = (
        o for o in run(folder, boxes(2, "ethernet"), only=["passes", "fails"], engine="analytic") if o.passed
    )
    assert (chosen.passed, len(chosen.failed), chosen.errors, chosen.skipped) == (["One.test_passes"], 1, [], [])


def test_a_report_counts_by_module_and_says_why():
    found = [
        Outcome("test_a", passed=["x", "y", "z"], skipped=[("s", "dmabuf"), ("t", "else")]),
        Outcome("test_b", failed=[("f", "long\nlast line\n")], errors=[("e", "one")]),
    ]
    lines = report(found).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["module", "passed", "skipped", "failed", "errors"], ["test_a", "3", "2", "0", "0"],
        ["test_b", "0", "0", "1", "1"],
    ]  # fmt: skip
    assert lines[3] == "3 of 6 tests that need neither device memory nor dma-buf pass (50.0%); 1 need one and skip"
    assert lines[4:] == ["skipped test_a t: else", "failed test_b f: last line", "error test_b e: one"]
    assert report(found, verbose=True).splitlines()[4:] == [
        "skipped test_a s: dmabuf", "skipped test_a t: else", "failed test_b f: long", "last line",
        "error test_b e: one",
    ]  # fmt: skip
    assert "(none); 0 need one" in report([Outcome("test_c")])


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([Outcome("a", passed=["x"])], 0),
        ([Outcome("a", failed=[("x", "y")])], 1),
        ([Outcome("a", errors=[("x", "y")])], 1),
    ],
)
def test_the_command_ends_with_1_where_a_test_did_not_pass(monkeypatch, capsys, outcomes, code):
    asked = []
    monkeypatch.setattr(rdma_core_tests, "_twin", lambda technology: technology)
    monkeypatch.setattr(
        rdma_core_tests, "run", lambda source, twin, **more: asked.append((twin, more)) or outcomes
    )
    assert (
        rdma_core_tests.main(["x", "--only", "a", "b", "--technology", "infiniband", "--engine", "flow"]) == code
    )
    assert asked == [("infiniband", {"only": ["a", "b"], "engine": "flow"})]
    rdma_core_tests.main(["x"])
    assert asked[1] == ("ethernet", {"only": [], "engine": "packet"})
    assert "module" in capsys.readouterr().out

    def refuse(*given, **more):
        raise ConfigError("no tests")

    monkeypatch.setattr(rdma_core_tests, "run", refuse)
    assert rdma_core_tests.main(["x"]) == 2
    assert "error: no tests" in capsys.readouterr().err


# ---------------------------------------------------------------------- the names of pyverbs


@pytest.fixture
def installed():
    stale = Record()
    sys.modules["pyverbs"] = sys.modules["pyverbs.old"] = stale
    import_hook.install(boxes(2, "ethernet"), engine="analytic")
    yield
    import_hook.uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] == "pyverbs"]
    assert import_hook._finder not in sys.meta_path


def test_pyverbs_is_the_twin_s_while_it_is_installed(installed):
    import_hook.install(boxes(2, "ethernet"), engine="analytic")
    assert sys.meta_path.count(import_hook._finder) == 1
    assert "pyverbs.old" not in sys.modules
    package = importlib.import_module("pyverbs")
    assert hasattr(package, "__path__")
    for name in sorted(import_hook._MODULES):
        made = importlib.import_module(f"pyverbs.{name}")
        assert not hasattr(made, "__path__")
    own = importlib.import_module("fabrictwin.verbs.pyverbs.pd")
    assert importlib.import_module("pyverbs.pd").PD is own.PD
    assert importlib.import_module("pyverbs.pd") is not own
    for name in ("nothing", "pd.more", "device.sub"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"pyverbs.{name}")
    assert import_hook._finder.find_spec("json", None) is None


def test_a_vendor_s_provider_can_be_imported_and_nothing_of_it_made(installed):
    providers = importlib.import_module("pyverbs.providers")
    assert hasattr(providers, "__path__")
    vendor = importlib.import_module("pyverbs.providers.mlx5")
    assert hasattr(vendor, "__path__")
    module = importlib.import_module("pyverbs.providers.mlx5.mlx5dv")
    assert not hasattr(module, "__path__")
    assert (module.MLX5_FLAG, module._MLX5_OTHER_) == (0, 0)
    made = module.Mlx5Context
    assert module.Mlx5Context is made
    assert (made.SOME_FLAG, list(made)) == (0, [])
    with pytest.raises(Exception, match="Mlx5Context needs a vendor's provider"):
        made()
    for owner in (module, made):
        assert not hasattr(owner, "__nothing__")


def test_what_the_adapters_have_not_says_so():
    kind = unsupported.absent("Thing", "there is none")
    with pytest.raises(Exception, match="Failed to create Thing: there is none"):
        kind(1, two=2)
    assert kind.__doc__ == "there is none."
    bag = unsupported.Bag(1, 2, name="x")
    assert (bag.arguments, bag.name) == ((1, 2), "x")
    made = flow.FlowAttr()
    assert (made.num_of_specs, made.flow_type, made.priority, made.port, made.flags, made.specs) == (
        0,
        0,
        0,
        1,
        0,
        [],
    )
    assert flow.FlowAttr(port=2, priority=3).port == 2
    with pytest.raises(Exception, match="no flow steering"):
        flow.Flow()


def test_registers_are_written_big_endian():
    held = ctypes.create_string_buffer(12)
    dma_util.mmio_write64_as_be(ctypes.addressof(held), 0x0102030405060708)
    dma_util.mmio_write32_as_be(ctypes.addressof(held) + 8, 0x0A0B0C0D)
    assert held.raw == bytes([1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13])
    assert dma_util.udma_to_dev_barrier() is dma_util.udma_from_dev_barrier() is None


def test_codes_in_words():
    assert code_words.status_text(0) == "success"
    assert code_words.status_text(999) == "unknown status 999"
    assert code_words.opcode_text(0x80) == "Receive"
    assert code_words.opcode_text(77) == "unknown opcode 77"
    assert code_words.flag_text(9, code_words.WC_FLAGS) == "GRH With invalidate "
    assert code_words.flag_text(0, code_words.WC_FLAGS) == ""
    assert code_words.lines([("a", 1), ("bb", None)], 4) == "a   : 1\nbb  : None\n"
    assert code_words.fields(Record(max_qp=7), "max_qp") == f"{'max qp':<22}: 7\n"


# ---------------------------------------------------------------------- tables of the standard

# IBA volume 1, table 45, in milliseconds by the field's value
RNR_MS = [
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84,
    5.12,
    7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
]  # fmt: skip
# rdma_core's ibv_rate_to_mbps, to the nominal 100 Mb/s
RATE_GBPS = {
    2: 2.5, 3: 10, 4: 30, 5: 5, 6: 20, 7: 40, 8: 60, 9: 80, 10: 120, 11: 14, 12: 56, 13: 112, 14: 168, 15: 25,
    16: 100,
    17: 200, 18: 300, 19: 28, 20: 50, 21: 400, 22: 600, 23: 800, 24: 1200,
}  # fmt: skip


def test_timers_and_rates_are_those_of_the_standard():
    assert [ps / 10**9 for ps in qp_checks.RNR_TIMER_PS] == pytest.approx(RNR_MS)
    assert {code: mbps / 1000 for code, mbps in qp_checks.STATIC_RATE_MBPS.items()} == RATE_GBPS
    assert (qp_checks.PSN_MASK, 1 << qp_checks.PSN_BITS) == (2**24 - 1, 2**24)


# ---------------------------------------------------------------------- rules of the adapter


def test_immediate_data_is_big_endian_and_keys_are_not():
    value = 0x01020304
    assert requester._wire_order(Record(opcode=SEND, immediate=value)) == 0x04030201
    assert requester._wire_order(Record(opcode=SEND_INV, immediate=value)) == value
    assert requester._wire_order(Record(opcode=SEND, immediate=1 << 32 | value)) == 0x04030201


def test_data_of_an_unreliable_message_is_read_when_it_leaves():
    asked = []
    memory = Record(epoch=1, local_segments=lambda *given: asked.append(given) or [("new", 4)])
    qp = Record(
        adapter=Record(memory=memory),
        domain="pd",
        world=Record(process_memory=Record(gather=lambda places: str(places))),
    )
    work = Record(data=None, places=[("old", 4)], epoch=1, segments="segments", qp=qp)
    assert requester.take_data(work) == "[('old', 4)]"
    memory.epoch = 2
    assert requester.take_data(work) == "[('old', 4)]"  # once
    work.data = None
    assert requester.take_data(work) == "[('new', 4)]"
    assert asked == [("segments", "pd", 0)]
    work.data = None
    memory.local_segments = lambda *given: None
    assert requester.take_data(work) == "()"


def test_the_region_that_bytes_go_to_is_that_of_the_receive_or_of_the_key(monkeypatch):
    monkeypatch.setattr(payload_placement, "region_of_key", lambda adapter, key: ("region", key))
    receives = Record(queue=[(1, [(0, 9, 55)])])
    target = Record(
        queue_pairs={7: Record(receives=receives), 8: Record(receives=None)},
        shared_receives={3: Record(queue=[(1, [(0, 9, 66)])]), 4: Record(queue=[]), 5: Record(queue=[(1, [])])},
    )

    def found(opcode, *, dest=7, srqn=0, vector=None, remote=0):
        qp = Record(attributes=Record(dest_qp_num=dest))
        work = Record(opcode=opcode, srqn=srqn, vector=vector, remote_qpn=remote, qp=qp, rkey=77)
        return payload_placement.remote_region(target, work)

    assert found(WRITE) == found(WRITE_IMM) == ("region", 77)
    assert found(SEND) == ("region", 55)
    assert found(SEND, dest=8) is None
    assert found(SEND, dest=9) is None
    assert found(SEND, dest=9, vector="address", remote=7) == ("region", 55)
    assert [found(SEND, srqn=n) for n in (3, 4, 5, 6)] == [("region", 66), None, None, None]
    qp = Record(memory=Record(local={5: "mine"}))
    assert payload_placement.local_region(qp, Record(segments=[(0, 9, 5)])) == "mine"
    assert payload_placement.local_region(qp, Record(segments=[(0, 9, 6)])) is None
    assert payload_placement.local_region(qp, Record(segments=[])) is None

"""Every reader of files against a number of 4,400 digits, and named pipes in the place of files."""

from __future__ import annotations

import os
import subprocess
import threading
import tracemalloc
from pathlib import Path

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.textfile import open_bytes, read_bytes, read_table, read_text, write_text
from fabrictwin.capture.reader import CaptureFile
from fabrictwin.catalog.answers import read_entries
from fabrictwin.catalog.quantities import parse_bits, parse_count, parse_identifier, parse_power, parse_ratio
from fabrictwin.cluster.importers.ibnetdiscover import parse
from fabrictwin.cluster.importers.nccl_xml import read_topology
from fabrictwin.cluster.names import natural_key
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.routing.check.dump import read_dump
from fabrictwin.routing.engines.routing_options import read_guids, read_weights
from fabrictwin.subnet.manager.settings.partitions import Everybody, read_partitions
from fabrictwin.subnet.manager.settings.qos import read_qos
from fabrictwin.subnet.manager.sweep.lids import read_guid2lid
from fabrictwin.tools.rdma import roce_mode
from fabrictwin.tools.traffic.connection_matrix import read_traffic
from fabrictwin.validation import published_data
from fabrictwin.workload.model.huggingface_families import load_model
from fabrictwin.workload.operators.measurements import read_columns

HUGE = "9" * 4400
NOBODY = Everybody(frozenset(), frozenset(), frozenset())


def partitions(path: Path) -> object:
    """Read with nobody in the subnet."""
    return read_partitions(path, NOBODY)


READERS = {
    "traffic": (read_traffic, f"Nodes {HUGE}\nConnections 1\n0->1 id 1 start 0 size 5\n"),
    "flow": (read_traffic, f"Nodes 2\nConnections 1\n0->1 id 1 start 0 size {HUGE}\n"),
    "model": (load_model, f'{{"model_type": "llama", "hidden_size": {HUGE}}}'),
    "weights": (read_weights, f"0x1 1 {HUGE}\n"),
    "weights-port": (read_weights, f"0x1 {HUGE} 1\n"),
    "roots": (read_guids, f"0x{HUGE}\n"),
    "guid2lid": (read_guid2lid, f"0x1 {HUGE} {HUGE}\n"),
    "partitions": (partitions, f"jobs={HUGE} : ALL ;\n"),
    "qos": (read_qos, f"qos_high_limit {HUGE}\n"),
    "xml": (read_topology, None),
    "dump": (read_dump, f"Unicast lids [0x0-0x1] of switch Lid 1 guid 0x1 (a):\n0x0001 001\n{HUGE} lids dumped\n"),
    "spec": (load_spec, f"schema: {HUGE}\n"),
    "spec-hex": (load_spec, f"schema: 0x{HUGE}\n"),
}


@pytest.mark.parametrize("name", [name for name, (_, text) in READERS.items() if text is not None])
def test_a_number_of_thousands_of_digits_is_one_short_error(name, tmp_path):
    read, text = READERS[name]
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read(path)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 300 + len(str(path))


@pytest.mark.parametrize(
    "change",
    [
        ("b: [gpu0]", "b: [gpu0..gpu7777777777]", r"links\[0\].*expected a range such as 'gpu0..gpu7'"),
        ("times: 1", "times: 800000000", "got times 800000000 and step"),
        ("times: 1", f"times: {HUGE}", "expected plain text or a number"),
        ("gpu: 1", "gpu: 800000000", "nodes.gpu: got 800000000, expected a number of at most 1024"),
    ],
)
def test_an_own_catalog_is_counted_before_it_is_spelled_out(change):
    text = (
        "h:\n  title: t\n  source: derived\n  gpu: h100-sxm\n  chips: {cpu: epyc-9654}\n"
        "  nodes: {cpu: 1, gpu: 1, nic: 1}\n  nics: [{type: connectx-7, hca: mlx5_0, rail: 0, times: 1}]\n"
        "  links: [{a: [cpu0], b: [gpu0], link: pcie-gen5-x16}]\n"
    )
    old, new, words = change
    assert old in text
    with pytest.raises(ConfigError, match=words) as refused:
        read_entries(text.replace(old, new), kind="host", file="own")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("parse", [parse_count, parse_identifier, parse_ratio, parse_bits, parse_power])
def test_quantities_of_a_catalog_have_a_size(parse):
    for text in (f"{HUGE} links", f"0x{HUGE}", f"{HUGE}/3", "1e999999999/3", f"{HUGE} bits", f"{HUGE} W"):
        with pytest.raises(ValueError, match="got") as refused:
            parse(text)
        assert len(str(refused.value)) < 300


def test_names_sort_by_numbers_of_any_length():
    names = ["h10", "h9", "h" + HUGE, "h09", "h", "a1", "h9" + HUGE]
    assert sorted(names, key=natural_key) == ["a1", "h", "h09", "h9", "h10", "h" + HUGE, "h9" + HUGE]


def test_a_discovered_fabric_may_have_such_names():
    text = (
        'switchguid=0x51(51)\nSwitch\t41 "S-0000000000000051"\t\t# "leaf-'
        + HUGE
        + '" enhanced port 0 lid 1 lmc 0\n'
        '[1]\t"H-00000000000000a1"[1](a1) \t\t# "box mlx5_0" lid 2 4xHDR\n\n'
        'caguid=0xa1\nCa\t1 "H-00000000000000a1"\t\t# "box mlx5_0"\n'
        '[1](a1) \t"S-0000000000000051"[1]\t\t# lid 2 lmc 0 "leaf" lid 1 4xHDR\n'
    )
    found = parse(text, "net.txt")
    assert natural_key(found.nodes["S-0000000000000051"].description)


def test_modes_of_roce_that_are_no_text_are_one_error(tmp_path):
    roce_mode.file_of(tmp_path / "c.yaml").write_bytes(b"host-0 mlx5_0 v1\nh\xe5st v2\n")
    with pytest.raises(ConfigError, match=":2: got bytes that are not UTF-8 text"):
        roce_mode.read(tmp_path / "c.yaml")


# ------------------------------------------------------------------ pipes


def dump(path: Path) -> object:
    """Read the first packet."""
    return next(iter(CaptureFile(path)))


@pytest.mark.parametrize("read", [load_spec, read_traffic, read_topology, read_dump, dump, read_text])
def test_a_pipe_that_nobody_writes_to_is_refused(read, tmp_path, monkeypatch):
    monkeypatch.setattr("fabrictwin.base.textfile.OTHER_END_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="a pipe that nobody writes to"):
        read(pipe)


def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "x" * 300_000 + "\n"  # more than a pipe holds at once
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert read_text(pipe) == text
    writer.join()


def test_a_shells_process_substitution_is_read():
    with subprocess.Popen(["printf", "a: 1"], stdout=subprocess.PIPE) as child:
        assert read_text(f"/dev/fd/{child.stdout.fileno()}") == "a: 1"


def test_folders_and_missing_files_are_errors_of_their_own(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_text(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_text(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text("a\0b")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(IsADirectoryError):
            open_bytes(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_cell_that_is_longer_than_csv_takes_is_said(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("# from\nkey,value\nx," + "1" * 200_000 + "\n")
    with pytest.raises(ConfigError, match=r"table.csv:\d: is no CSV"):
        read_table(path)


@pytest.mark.parametrize(
    "content", [b"a,b\n1\r2,3\n", b"\x1f\x8b\x08\x00broken", b"a\n" + b"1" * 200_000, b"\xff\xfe"]
)
def test_measurements_that_are_no_table_are_refused(tmp_path, content):
    path = tmp_path / "kernels.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="expected a CSV or Parquet file"):
        read_columns(path)


@pytest.mark.second
def test_measurements_from_a_pipe_do_not_wait_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe that nobody writes to"):
        read_columns(tmp_path / "pipe")


def test_published_rows_that_are_no_csv_are_refused(tmp_path):
    path = tmp_path / "training.csv"
    path.write_text('set,row\nx,"y\n')
    with pytest.raises(ConfigError):
        published_data.read_table(path, published_data.Row)


def test_a_pipe_that_nobody_reads_is_refused_and_one_with_a_reader_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("fabrictwin.base.textfile.OTHER_END_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="cannot be written: a pipe that nobody reads"):
        write_text(pipe, "text")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)


def test_a_small_file_takes_no_room_for_the_largest_that_there_may_be(tmp_path):
    path = tmp_path / "small"
    path.write_bytes(b"x" * 5000)
    tracemalloc.start()
    assert read_bytes(path, 1 << 30) == b"x" * 5000
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 23
    with pytest.raises(ConfigError, match="is larger than 0 MiB"):
        read_bytes(path, 4999)

"""The catalog: every figure has a source, computed rates follow from lanes, errors name file, line and key."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import networkx as nx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.edits import each, edited

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.yamlfile import read_yaml
from fabrictwin.catalog.answers import read_entries
from fabrictwin.catalog.hosts import repeated
from fabrictwin.catalog.price_book import price_book
from fabrictwin.catalog.quantities import parse_count, parse_message_rate, parse_ratio
from fabrictwin.cli.fabric.catalog import catalog as app

ENTRIES = list(catalog.entries())
HOSTS = catalog.names("host")


def entry_id(value: object) -> str | None:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("kind", "name", "entry"), ENTRIES, ids=entry_id)
def test_every_figure_has_a_source_and_every_estimate_says_why(kind, name, entry):
    found = list(catalog.figures(entry))
    assert found
    for key, figure in found:
        assert figure.source in catalog.sources(), f"{kind} {name} {key}"
        if figure.estimate or figure.source == "derived":
            assert figure.note or entry.note, f"{kind} {name} {key} is an estimate without a note"


def test_every_source_is_used_and_has_a_title():
    used = {figure.source for _, _, entry in ENTRIES for _, figure in catalog.figures(entry)}
    used |= {figure.source for _, figure in catalog.figures(price_book())}
    assert used == set(catalog.sources())
    for key, source in catalog.sources().items():
        assert source.title
        assert source.url.startswith("https://") or key in ("derived", "h100-measured")


def test_no_number_stands_in_the_data_without_a_unit_or_noun():
    for _, _, entry in ENTRIES:
        for key, figure in catalog.figures(entry):
            if isinstance(figure, catalog.Figure):
                assert re.search(r"[A-Za-z%/]", figure.text), key


# the rates that the InfiniBand trade association and IEEE publish, not computed here
PUBLISHED_GBPS = {
    4: {"SDR": 8, "DDR": 16, "QDR": 32, "FDR10": 40, "EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800},
    1: {"EDR": 25},
    2: {"HDR": 100, "NDR": 200},
    8: {"HDR": 400},
    12: {"QDR": 96},
}  # by lanes


@pytest.mark.parametrize("width", PUBLISHED_GBPS)
def test_infiniband_rates_are_the_published_ones(width):
    found = {speed: catalog.infiniband_rate(speed, width) for speed in PUBLISHED_GBPS[width]}
    assert found == {speed: gbps * 10**9 for speed, gbps in PUBLISHED_GBPS[width].items()}


def test_fdr_loses_two_bits_of_66():
    assert catalog.infiniband_rate("FDR") == round(Fraction(14_062_500_000 * 4 * 64, 66)) == 54_545_454_545


@pytest.mark.parametrize(("name", "gbps"), [("100G", 100), ("200G", 200), ("400G", 400), ("800G", 800)])
def test_ethernet_rates_are_their_names(name, gbps):
    assert catalog.ethernet_rate(name) == gbps * 10**9


def test_fec_collects_a_code_word_at_line_rate_and_decodes_it():
    # 5440 bits at 212.5 Gb/s are 25.6 ns
    assert catalog.infiniband("HDR").fec_latency_ps(4) == 25_600 + 37_000
    assert catalog.infiniband("HDR").fec_latency_ps(2) == 51_200 + 37_000
    assert catalog.infiniband("EDR").fec_latency_ps() == 0
    assert catalog.ethernet("400G").fec_latency_ps == 12_800 + 37_000


@pytest.mark.parametrize(("gen", "gigatransfers"), [("gen3", 8), ("gen4", 16), ("gen5", 32)])
def test_pcie_rates_are_lanes_times_transfers_times_128_of_130(gen, gigatransfers):
    for lanes in (1, 4, 16):
        link = catalog.link(f"pcie-{gen}-x{lanes}")
        assert link.rate_bps == round(gigatransfers * 10**9 * lanes * 128 / 130)
        assert (link.kind, link.payload_bytes, link.overhead_bytes) == ("pcie", 256, 24)


def test_pcie_payload_rate_meets_host_to_device_copies_that_were_measured():
    # Azure ND A100 v4: 26.28 GB/s over Gen 4; nvbandwidth on an H200 node: 55.43, Azure ND H100 v5: 51 over Gen 5
    assert catalog.link("pcie-gen4-x16").payload_rate_bps / 8e9 == pytest.approx(26.28, rel=0.05)
    assert catalog.link("pcie-gen5-x16").payload_rate_bps / 8e9 == pytest.approx(53.2, rel=0.05)


def test_a_read_over_the_pcie_figures_takes_what_pcie_bench_measured():
    # there and back between adapter and root port, and memory in between; an independent measurement says 547 ns
    cpu = catalog.chip("epyc-7742")
    one_way = catalog.link("pcie-gen3-x16").latency_ps + cpu.latency.value // 2
    assert 2 * one_way + cpu.memory_latency.value == pytest.approx(
        catalog.nic("connectx-6").dma_read.value, rel=0.1
    )


@pytest.mark.parametrize(("name", "links", "gpu"), [("nvlink3", 12, "a100-80"), ("nvlink4", 18, "h100-sxm")])
def test_nvlink_gives_25_gbytes_a_link_and_less_to_kernels(name, links, gpu):
    link = catalog.link(name)
    assert link.kind == "nvlink"
    assert link.rate_bps == 8 * 25 * 10**9
    assert 8 * 20 * 10**9 <= link.payload_rate_bps < link.rate_bps
    assert catalog.nvlink(name).links_per_gpu.value == catalog.gpu(gpu).nvlink_links.value == links
    assert link.payload_rate_bps < catalog.nvlink(name).copy_rate_bps < link.rate_bps


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_is_connected_and_refers_to_what_exists(name):
    host = catalog.host(name)
    graph = nx.MultiGraph()
    graph.add_nodes_from(host.node_names)
    for edge in host.edges:
        assert catalog.link(edge.link).kind in {"nvlink", "pcie", "cpu"}
        graph.add_edge(edge.a, edge.b)
    assert nx.is_connected(graph)
    assert catalog.gpu(host.gpu).name == host.gpu
    for kind, chip in host.chips.items():
        assert catalog.chip(chip).kind == kind
    for i, nic in enumerate(host.nics):
        adapter = catalog.nic(nic.type)
        lanes = adapter.pcie_lanes.value
        assert f"pcie-{adapter.pcie}-x{lanes}" in {e.link for e in host.edges if f"nic{i}" in (e.a, e.b)}


@pytest.mark.parametrize("name", HOSTS)
def test_every_rail_is_as_near_to_its_gpu_as_any_adapter(name):
    host = catalog.host(name)
    pcie = nx.Graph((e.a, e.b) for e in host.edges if catalog.link(e.link).kind != "nvlink")
    for i, nic in enumerate(host.nics):
        hops = nx.single_source_shortest_path_length(pcie, f"gpu{nic.rail}")
        # trays of a rack are joined by NVLink alone
        assert hops[f"nic{i}"] == min(hops.get(f"nic{k}", len(pcie)) for k in range(len(host.nics)))


@pytest.mark.parametrize(("name", "per_switch"), [("dgx-a100", [2] * 6), ("dgx-h100", [5, 4, 4, 5])])
def test_nvswitches_take_all_links_of_every_gpu(name, per_switch):
    host = catalog.host(name)
    taken = Counter({(e.a, e.b): e.count for e in host.edges if e.link.startswith("nvlink")})
    switches = host.nodes.names("nvswitch")
    for gpu in host.nodes.names("gpu"):
        assert [taken[gpu, switch] for switch in switches] == per_switch
        assert sum(per_switch) == catalog.gpu(host.gpu).nvlink_links.value
    ports = catalog.chip(host.chips["nvswitch"]).ports.value
    assert all(8 * count <= ports for count in per_switch)


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72"])
def test_a_rack_joins_72_gpus_by_one_link_to_each_of_18_switch_chips(name):
    host = catalog.host(name)
    taken = Counter((e.a, e.b) for e in host.edges if e.link == "nvlink5")
    assert len(taken) == 72 * 18
    assert set(taken.values()) == {1}
    assert catalog.chip(host.chips["nvswitch"]).ports.value == 72
    assert catalog.gpu(host.gpu).nvlink_links.value == 18
    beside = {e.a for e in host.edges if e.b == "gpu7"} | {e.b for e in host.edges if e.a == "gpu7"}
    assert "cpu3" in beside  # two GPUs a Grace
    assert [nic.hca for nic in host.nics][:2] == ["mlx5_0", "mlx5_1"]
    assert [nic.rail for nic in host.nics] == list(range(72))


def test_a_board_joins_four_gpus_by_six_links_a_pair():
    host = catalog.host("gb200-nvl4")
    taken = Counter(frozenset((e.a, e.b)) for e in host.edges for _ in range(e.count) if e.link == "nvlink5")
    assert len(taken) == 6
    assert set(taken.values()) == {6}
    assert catalog.gpu(host.gpu).nvlink_links.value == 3 * 6
    assert not host.nodes.nvswitch


def test_what_a_data_file_repeats_is_spelled_out():
    spelled = repeated([{"a": ["cpu1"], "b": ["gpu0..gpu1"], "link": "x", "times": 2, "step": {"gpu": 2}}])
    assert spelled == [
        {"a": ["cpu1"], "b": ["gpu0", "gpu1"], "link": "x"},
        {"a": ["cpu2"], "b": ["gpu2", "gpu3"], "link": "x"},
    ]
    with pytest.raises(ValueError, match="got times 0"):
        repeated([{"a": ["cpu1"], "b": ["gpu0"], "link": "x", "times": 0}])


@pytest.mark.parametrize(
    ("host", "gbytes_per_s"),
    # NVIDIA's totals for all GPUs of a system in both directions: 4.8, 7.2, 14.4 and 130 TB/s
    [("dgx-a100", 4800), ("dgx-h200", 7200), ("dgx-b200", 14400), ("dgx-b300", 14400), ("gb200-nvl72", 129600)],
)
def test_nvlink_of_a_system_adds_up_to_the_published_total(host, gbytes_per_s):
    edges = [e for e in catalog.host(host).edges if e.link.startswith("nvlink") and e.b.startswith("nvs")]
    total = sum(e.count * catalog.link(e.link).rate_bps for e in edges)
    assert 2 * total / 8e9 == pytest.approx(gbytes_per_s)


def test_dgx_adapters_carry_their_real_names():
    assert [nic.hca for nic in catalog.host("dgx-a100").nics] == [f"mlx5_{i}" for i in (0, 1, 2, 3, 6, 7, 8, 9)]
    assert [nic.hca for nic in catalog.host("dgx-h100").nics] == [f"mlx5_{i}" for i in (0, 3, 4, 5, 6, 9, 10, 11)]


def test_nodes_of_a_host_have_kinds():
    host = catalog.host("dgx-a100")
    assert Counter(host.kind_of(node) for node in host.node_names) == {
        "cpu": 2,
        "pcie_switch": 4,
        "nvswitch": 6,
        "gpu": 8,
        "nic": 8,
    }


@pytest.mark.parametrize("name", catalog.names("nic"))
def test_an_adapters_port_rate_is_its_speeds(name):
    nic = catalog.nic(name)
    assert nic.port_rate.value == catalog.ethernet_rate(nic.ethernet)
    if nic.transport == "srd":
        assert not nic.infiniband
        assert nic.spray_paths is not None
    else:
        assert nic.port_rate.value == catalog.infiniband_rate(nic.infiniband)
    assert catalog.pcie(nic.pcie).payload_rate_bps(nic.pcie_lanes.value) > nic.port_rate.value
    assert nic.qp_message_rate.value < nic.message_rate.value


@pytest.mark.parametrize("name", catalog.names("switch"))
def test_no_mode_of_a_switch_has_more_capacity_than_its_first(name):
    capacities = [mode.ports.value * catalog.port_rate(mode) for mode in catalog.switch(name).modes]
    assert max(capacities) == capacities[0]


def test_a_cable_is_copper_while_it_reaches_and_then_fibre():
    assert catalog.medium(2000, 200 * 10**9).name == "dac"
    assert catalog.medium(2001, 200 * 10**9).name == "optics-pam4"
    assert catalog.medium(20_000, 100 * 10**9).name == "aoc-nrz"
    assert catalog.cable_latency_ps(0, 100 * 10**9) == 0
    # 20 m at the speed of light over 1.4682, and 10 ns at each end
    assert catalog.cable_latency_ps(20_000, 400 * 10**9) == round(20 * 1.4682 / 299_792_458 * 1e12) + 20_000


def test_a_cable_that_nothing_reaches_is_an_error():
    with pytest.raises(ConfigError, match=r"got a cable of 3000 m at 800 Gb/s, expected at most 2000 m"):
        catalog.cable_latency_ps(3_000_000, 800 * 10**9)


@given(st.integers(0, 2_000_000), st.integers(0, 2_000_000), st.sampled_from([25, 100, 200, 400, 800]))
def test_a_longer_cable_is_never_faster(a, b, gbps):
    short, long = sorted((a, b))
    assert catalog.cable_latency_ps(short, gbps * 10**9) <= catalog.cable_latency_ps(long, gbps * 10**9)


@pytest.mark.parametrize("name", catalog.names("gpu"))
def test_measured_throughputs_stay_below_the_peak(name):
    gpu = catalog.gpu(name)
    for precision in gpu.gemm:
        rows = catalog.gemm_efficiency(name, precision)
        assert len(rows) >= 8
        # a product of 1024 is far too small for four-bit elements
        assert all(0.014 < flops / gpu.peak_flops[precision].value < 1 for *_, flops in rows)
    assert 0.5 < gpu.memory_efficiency < 1
    if gpu.compute_capability.value < 80:  # before bf16, tf32 and FlashAttention
        assert gpu.wide_type == "fp16"
        assert set(gpu.attention) == {"materialised"}
        return
    assert gpu.attention["materialised"].throughput.value < gpu.attention["flash"].throughput.value
    assert gpu.peak_flops["tf32"].value <= gpu.peak_flops["bf16"].value == gpu.peak_flops["fp16"].value


def test_a_table_like_another_scales_it():
    measured = catalog.gemm_efficiency("h100-sxm", "fp16")
    scaled = catalog.gemm_efficiency("h100-hbm2e", "bf16")
    factor = round((500 / 700) ** (1 / 3), 3)
    for (m, n, k, flops), row in zip(measured, scaled, strict=True):
        assert row == (m, n, k, pytest.approx(flops * factor))
    assert (4096, 8192, 8192, 690.4e12) in measured


def test_headers_add_up_to_the_published_overheads():
    # RoCE v2 middle packet on the wire: 82 bytes around its payload
    ethernet, infiniband = catalog.headers("ethernet"), catalog.headers("infiniband")
    roce = ethernet.bytes_of("preamble", "ethernet", "IPv4", "UDP", "FCS", "gap") + infiniband.bytes_of(
        "BTH", "ICRC"
    )
    assert roce == 82
    assert infiniband.bytes_of("LRH", "BTH", "ICRC", "VCRC") == 26


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: catalog.host("dgx-a10"),
            f"got 'dgx-a10', expected one of the hosts in the catalog ({', '.join(catalog.names('host'))}), "
            "did you mean 'dgx-a100'?",
        ),
        (lambda: catalog.infiniband_rate("hdr"), "did you mean 'HDR'?"),
        (lambda: catalog.infiniband_rate("HDR", 3), "got an InfiniBand width of 3, expected one of 1x, 2x, 4x"),
        (lambda: catalog.link("pcie-gen4-x17"), "did you mean 'pcie-gen4-x16'?"),
        (
            lambda: catalog.gemm_efficiency("a100-80", "fp8"),
            "one of the precisions measured on a100-80 (fp16, bf16)",
        ),
        (lambda: catalog.names("gpus"), "did you mean 'gpu'?"),
    ],
)
def test_an_unknown_name_says_what_there_is(ask, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        ask()


XGMI = """\
xgmi:
  title: a link
  source: nccl-topo
  rate: 32 GB/s
  payload_rate: 16 GB/s
  latency: 100 ns
"""


@each("old new message", "catalog/wrong_entries")
def test_an_error_in_a_data_file_names_file_line_and_key(old, new, message):
    assert read_entries(XGMI, kind="cpu_link", file="x.yaml")["xgmi"].latency.value == 100_000
    text = edited(XGMI, old, new)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        read_entries(text, kind="cpu_link", file="x.yaml")
    assert "\n" not in str(caught.value)


def test_an_unknown_key_gets_the_nearest_known_one():
    text = XGMI.replace("payload_rate", "payload_rat")
    with pytest.raises(ConfigError, match="did you mean 'payload_rate'"):
        read_entries(text, kind="cpu_link", file="x.yaml")


@given(st.text(max_size=200))
def test_any_text_either_reads_or_is_one_clear_error(text):
    message = ""
    try:
        read_yaml(text, "x.yaml")
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_count, "12 links", 12),
        (parse_count, "1 port", 1),
        (parse_ratio, "64/66", Fraction(32, 33)),
        (parse_ratio, "256/257 * 514/544", Fraction(16, 17)),
        (parse_ratio, "89.4 %", Fraction(894, 1000)),
        (parse_message_rate, "215 M msg/s", 215e6),
    ],
)
def test_catalog_units(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_count, "12"),
        (parse_count, "1.5 links"),
        (parse_count, 12),
        (parse_ratio, "0.9"),
        (parse_ratio, "1/0"),
        (parse_message_rate, "215 M"),
        (parse_message_rate, "2 Q msg/s"),
    ],
)
def test_catalog_units_refuse_bare_numbers(parse, text):
    with pytest.raises(ValueError, match="expected"):
        parse(text)


def test_list_shows_every_entry():
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 1 + len(ENTRIES)
    rows = json.loads(CliRunner().invoke(app, ["list", "host", "--json"]).output)
    assert [row["name"] for row in rows] == list(HOSTS)


@pytest.mark.parametrize("name", sorted({name for _, name, _ in ENTRIES} | {"pcie-gen4-x16"}))
def test_show_prints_each_figure_with_its_source(name):
    result = CliRunner().invoke(app, ["show", name])
    assert result.exit_code == 0
    for _, entry in catalog.find(name):
        for key, figure in catalog.figures(entry):
            line = next(line for line in result.output.splitlines() if line.startswith(f"{key} "))
            assert line.endswith(catalog.sources()[figure.source].title)
            assert ("  estimate  " in line) == figure.estimate
    shown = json.loads(CliRunner().invoke(app, ["show", name, "--json"]).output)
    assert shown[0]["sources"]


def test_show_of_an_unknown_name_is_a_config_error():
    result = CliRunner().invoke(app, ["show", "conectx-6"])
    assert isinstance(result.exception, ConfigError)
    assert "did you mean 'connectx-6'?" in str(result.exception)


def test_importing_the_catalog_reads_no_file_and_no_numba():
    code = (
        "import sys, fabrictwin.catalog, fabrictwin.catalog.answers as a\n"
        "assert a._kind.cache_info().currsize == a.sources.cache_info().currsize == 0\n"
        "assert not {'numba', 'rich.table'} & set(sys.modules), 'too much imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

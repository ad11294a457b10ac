"""Claims about links, adapters and switches."""

from __future__ import annotations

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.grouped import grouped
from fabrictwin.base.units import PS_PER_US, format_rate, format_time
from fabrictwin.engines.base.play import play
from fabrictwin.engines.packet.packet_options import PacketOptions, options_with
from fabrictwin.program import collectives
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.runs.execute import predict
from fabrictwin.study.claims.claim import Claim, Judgement, within
from fabrictwin.study.claims.claim_settings import spec, twin
from fabrictwin.study.compare.packet_measurements import small_message_ps
from fabrictwin.twin.twin import Twin

SAID_CUT = 0.3
GENERATIONS = {
    "SDR": 8.0, "DDR": 16.0, "QDR": 32.0, "FDR": 54.54, "EDR": 100.0, "HDR": 200.0, "NDR": 400.0, "XDR": 800.0,
}  # fmt: skip


SAID_US = {"EDR": 0.5, "HDR": 0.6}  # as generations are often listed, for what the catalog has


def send_ps(where: Twin, size: int, *, gpudirect: bool = True, staging_ps: int | None = None) -> int:
    """A message between GPUs of two hosts, packet by packet."""
    builder = ProgramBuilder("message", 2)
    every = builder.actor("both", np.arange(2))
    message = collectives.send(np.array([[0, 1]]), size, name="message")
    builder.communicate(builder.communication(message, [every]), builder.label("message", "other"))
    gpus = where.fabric.gpu_node
    nodes = np.array([gpus[0], gpus[-1]], np.int32)
    options = options_with(gpudirect=gpudirect)
    if staging_ps is not None:
        options = grouped(options, {"staging_ps": staging_ps})
    return play(builder.build(), nodes, where.start_engine("packet", options)).end_ps


def latency() -> Claim:
    switches = {name: catalog.switch(name).latency.value for name in ("qm8700", "qm9700", "spectrum-4")}
    ends = {name: small_message_ps(twin(spec(network=name))) for name in ("infiniband", "ethernet")}
    more = ends["ethernet"] / ends["infiniband"] - 1
    in_switch = switches["spectrum-4"] / switches["qm9700"]
    return Claim(
        key="latency",
        statement="InfiniBand's latency is about 100 ns, Ethernet's 200 to 400 ns.",
        experiment="Port-to-port latencies of the catalog's switches; an empty message between GPUs of two DGX H100 "
        "through one switch, at 400 Gb/s, on both.",
        figures=(
            *((f"{catalog.switch(n).title}, port to port", format_time(ps)) for n, ps in switches.items()),
            ("InfiniBand, GPU to GPU", format_time(ends["infiniband"])),
            ("RoCE, GPU to GPU", format_time(ends["ethernet"])),
            ("RoCE over InfiniBand, GPU to GPU", f"{more:+.1%}"),
        ),
        judgement=Judgement.CONDITIONS if in_switch > 2 and more < in_switch - 1 else Judgement.WRONG,
        why=f"It is the latency of a switch that is meant: there InfiniBand is {in_switch:.1f} times as fast. End to end "
        f"adapters, PCIe and memory take most of the time on both, and what is left of it is {more:+.1%}.",
    )


def gpudirect() -> Claim:
    where = twin(spec())
    small = {on: send_ps(where, 8, gpudirect=on) for on in (True, False)}
    # no processor's time at all: what the copies over PCIe and through memory take by themselves
    least = 1 - small[True] / send_ps(where, 8, gpudirect=False, staging_ps=0)
    assumed = format_time(PacketOptions().hosts.staging_ps)
    large = {on: send_ps(where, 1 << 20, gpudirect=on) for on in (True, False)}
    cut = 1 - small[True] / small[False]
    return Claim(
        key="gpudirect",
        statement=f"GPUDirect RDMA cuts latency by about another {100 * SAID_CUT:.0f} %.",
        experiment="A message between GPUs of two DGX H100 through one NDR switch, packet by packet, with GPUDirect and "
        "staged through host memory.",
        figures=(
            ("8 B, GPUDirect", format_time(small[True])),
            ("8 B, staged", format_time(small[False])),
            ("8 B, cut by", f"{cut:.1%}"),
            ("8 B, cut by, were the processor's part free", f"{least:.1%}"),
            ("1 MiB, GPUDirect", format_time(large[True])),
            ("1 MiB, staged", format_time(large[False])),
            ("1 MiB, cut by", f"{1 - large[True] / large[False]:.1%}"),
        ),
        judgement=Judgement.HOLDS
        if least > SAID_CUT - 0.1 and cut < SAID_CUT + 0.1
        else Judgement.CONDITIONS
        if least < SAID_CUT < cut
        else Judgement.OFF,
        why="Staging adds a copy to host memory at either end and a processor that starts each. The copies alone make "
        f"{least:.0%} of a small message's latency; with {assumed} of a processor a copy, which is an estimate of the packet "
        f"engine and no measurement, it comes to {cut:.0%}. What was said "
        + ("is what the copies alone make." if within(least, SAID_CUT, 0.2) else "lies between."),
    )


def generations() -> Claim:
    found = {name: catalog.infiniband_rate(name, 4) / 1e9 for name in GENERATIONS}
    wrong = [name for name, said in GENERATIONS.items() if not within(found[name], said, 0.005)]
    adapters = {
        str(one.infiniband): (
            one.title.partition(" (")[0],
            one.doorbell.value + 2 * one.processing.value + one.dma_write.value,
        )
        for kind, _, one in catalog.entries()
        if isinstance(one, catalog.Nic) and one.infiniband in SAID_US
    }
    longer = [name for name, said in SAID_US.items() if not within(adapters[name][1] / PS_PER_US, said, 0.25)]
    eight = 1 - float(catalog.infiniband("QDR").line_code.value)
    sixty_four = 1 - float(catalog.infiniband("FDR").line_code.value)
    return Claim(
        key="generations",
        statement="4x links carry SDR 8, DDR 16, QDR 32, FDR 54.54, EDR 100, HDR 200, NDR 400, XDR 800 Gb/s, with adapters "
        "of 0.5 us (EDR) and 0.6 us (HDR); 8b/10b costs 20 %, 64b/66b about 3 %.",
        experiment="Lane rate times lanes times line code, of every generation in the catalog.",
        figures=(
            *((f"{name} 4x", format_rate(round(value * 1e9))) for name, value in found.items()),
            ("8b/10b costs", f"{eight:.1%}"),
            ("64b/66b costs", f"{sixty_four:.1%}"),
            *(
                (f"{name} adapter ({title}), doorbell to memory", f"{format_time(ps)}, said {SAID_US[name]:g} us")
                for name, (title, ps) in adapters.items()
            ),
            *(
                (
                    f"{name}, {adapter}, as published",
                    ("below " if "less than" in f.note else "") + format_time(f.value),
                )
                for name in GENERATIONS
                for adapter, f in catalog.infiniband(name).adapters.items()
            ),
        ),
        judgement=Judgement.OFF
        if wrong or not within(eight, 0.2, 0.01)
        else Judgement.CONDITIONS
        if longer
        else Judgement.HOLDS,
        why="Rates follow from lanes and code."
        + (f" Not as said: {', '.join(wrong)}." if wrong else "")
        + (f" Latencies of {' and '.join(longer)} adapters are not as said:" if longer else " Latencies:")
        + " doorbell, both adapters' work and the write to memory, summed from figures that the catalog marks as estimates,"
        " without wire and switch. What was published of older adapters stands above (`fabrictwin catalog generations`); the twin "
        "has no model of them.",
    )


def switch_and_adapter() -> Claim:
    switch = catalog.switch("qm9700").latency.value / 1000
    older = catalog.switch("qm8700").latency.value / 1000
    rate = catalog.nic("connectx-7").message_rate.value / 1e6
    one = catalog.nic("connectx-7").qp_message_rate.value / 1e6
    return Claim(
        key="switch",
        statement="A switch adds about 90 ns; an adapter handles tens of millions of operations a second.",
        experiment="Latency and message rate of the catalog's switches and adapters.",
        figures=(
            ("HDR switch", f"{older:g} ns at most"),
            ("NDR switch", f"{switch:g} ns"),
            ("ConnectX-7", f"{rate:g} million messages/s"),
            ("ConnectX-7, one queue pair", f"{one:g} million messages/s"),
        ),
        judgement=Judgement.CONDITIONS if switch > 100 else Judgement.HOLDS,
        why="What was said is of an EDR switch, whose links have no FEC of the length that faster lanes need. The adapter's rate is "
        "of many queue pairs together: one alone gets a small part of it.",
    )


def standards() -> Claim:
    return Claim(
        key="ecn",
        statement="ECN for IP is IEEE 802.1Qau.",
        experiment="None: the standards say.",
        figures=(("ECN for IP", "RFC 3168"), ("IEEE 802.1Qau", "quantized congestion notification, layer 2")),
        judgement=Judgement.WRONG,
        why="802.1Qau is QCN, which works within one Ethernet segment and which RoCE v2 does not use. DCQCN reads the "
        "ECN bits of the IP header (RFC 3168) that a switch sets.",
    )


def nvlink() -> Claim:
    nv, four = catalog.nvlink("nvlink4"), catalog.pcie("gen4")
    five = catalog.pcie("gen5")
    gpu = nv.rate_bps * nv.links_per_gpu.value
    ratio = {"gen 4": gpu / four.rate_bps(16), "gen 5": gpu / five.rate_bps(16)}
    job = {"parallel": {"tp": 2, "dp": 1}, "micro_batches": 4, "precision": "bf16"}
    step = {
        name: predict(spec(1, host=host, network="hdr", training=job, run={"fidelity": "flow"})).trace.end_ps
        for name, host in (("NVLink 3", "dgx-a100"), ("PCIe gen 4", "pcie-box"))
    }
    gain = step["PCIe gen 4"] / step["NVLink 3"]
    return Claim(
        key="nvlink",
        statement="NVLink is many times faster than PCIe, and tensor parallelism lives from it.",
        experiment="Rates of a GPU's NVLink 4 and of PCIe x16; a step of a 7 B model, tensor-parallel over two A100 of "
        "one host, with NVLink and without.",
        figures=(
            ("NVLink 4, a GPU, one way", format_rate(gpu)),
            ("PCIe gen 4 x16", format_rate(four.rate_bps(16))),
            ("PCIe gen 5 x16", format_rate(five.rate_bps(16))),
            *((f"NVLink over PCIe {name}", f"{value:.1f}") for name, value in ratio.items()),
            *((f"step, TP 2, {name}", format_time(ps)) for name, ps in step.items()),
            ("step without NVLink over step with it", f"{gain:.2f}"),
        ),
        judgement=Judgement.HOLDS if min(ratio.values()) > 5 and gain > 1.02 else Judgement.CONDITIONS,
        why=f"The wire is {min(ratio.values()):.0f} to {max(ratio.values()):.0f} times as fast. What a job gains depends on "
        f"how much it computes between two all-reduces: here {gain:.2f} times with two GPUs, more with more.",
    )

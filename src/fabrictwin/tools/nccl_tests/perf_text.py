"""nccl-tests' table and its JSON file, column by column (src/util.cu of version 2.19).

Lines that begin with `#` are notes to whoever reads; one of them says that the twin wrote the table. The file of
`-J` has nccl-tests' keys, with what NCCL chose added to each row; times of day are left empty, so that the same
test yields the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from fabrictwin import catalog
from fabrictwin.base.units import PS_PER_US
from fabrictwin.base.version import __version__
from fabrictwin.catalog.error_ranges import (
    BETWEEN_HOSTS,
    COLLECTIVE,
    ONE_DOMAIN,
    REGIMES,
    ErrorRange,
    error_ranges,
    regime_of,
)
from fabrictwin.nccl.log.log import Processes
from fabrictwin.nccl.settings.algorithm_selection import ALGORITHMS, PROTOCOLS
from fabrictwin.nccl.settings.version import version
from fabrictwin.tools.nccl_tests.perf import Options, Row, Run, average_bus_gbps

TESTS_VERSION = "2.19.6"
FILE_VERSION = 1
MOST_DEVICES = 128  # listed; more are counted


def version_code(text: str) -> int:
    """NCCL's number of a release: 22809 for 2.28.9."""
    release = version(text)
    return release.major * 10000 + release.minor * 100 + release.patch


def number(value: float, width: int) -> str:
    """The number with as many decimals as fit (`getFloatStr`)."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def opening(run: Run, *, source: str, fidelity: str, reduced: bool) -> str:
    """Everything above the table's head."""
    options, code = run.options, version_code(run.communicator.version)
    factor = options.step_factor > 1
    step = f"{options.step_factor}(factor)" if factor else f"{options.step_bytes}(bytes)"
    lines = [
        f"# nccl-tests version {TESTS_VERSION} nccl-headers={code} nccl-library={code}",
        f"# Collective test starting: {options.test.program}",
        f"# Simulated by fabrictwin {__version__}: {source}, {run.ranks} GPUs on "
        f"{len(set(run.communicator.placement.host_of_node.tolist()))} hosts, fidelity {fidelity}",
        f"# nThread {options.threads} nGpus {options.gpus} minBytes {options.min_bytes} "
        f"maxBytes {options.max_bytes} step: {step} warmup iters: {options.warmup} "
        f"iters: {options.iterations} agg iters: 1 validation: {options.check} graph: 0 unalign: 0",
        "#",
        "# Using devices",
        *(device_line(each) for each in devices(run, options)),
    ]
    if run.ranks > MOST_DEVICES:
        lines.append(f"#  ... and {run.ranks - MOST_DEVICES} more")
    if reduced:
        lines += ["#", f"# Reducing maxBytes to {options.max_bytes} due to memory limitation"]
    return "\n".join(lines) + "\n"


def devices(run: Run, options: Options) -> Iterator[dict[str, Any]]:
    """The first GPUs, as the list under `# Using devices` has them."""
    communicator = run.communicator
    processes = Processes(communicator, options.gpus * options.threads)
    fabric = communicator.twin.fabric
    for rank in range(min(run.ranks, MOST_DEVICES)):
        node = int(communicator.placement.rank_node[rank])
        device = processes.device(rank)
        bus = (0x1B + 0x10 * device) % 256
        yield {
            "rank": rank,
            "group": 0,
            "pid": processes.pid(rank),
            "hostname": processes.host(rank),
            "device": device,
            "device_hex": f"[0000:{bus:02x}:00]",
            "device_info": catalog.gpu(
                fabric.templates[fabric.host_template[fabric.node_host[node]]].gpu_type
            ).title,
        }


def device_line(device: dict[str, Any]) -> str:
    return (
        f"#  Rank {device['rank']:2d} Group {device['group']:2d} Pid {device['pid']:6d} on "
        f"{device['hostname']:>10} device {device['device']:2d} {device['device_hex']} {device['device_info']}"
    )


def head() -> str:
    """The three lines over the columns."""
    blank = ""
    first = f"# {blank:>10}  {blank:>12}  {blank:>8}  {blank:>6}  {blank:>6}"
    first += "           out-of-place                       in-place          "
    names = ("time", "algbw", "busbw", "#wrong")
    units = ("(us)", "(GB/s)", "(GB/s)", "")
    rows = [first]
    for lead, each in (
        (("size", "count", "type", "redop", "root"), names),
        (("(B)", "(elements)", "", "", ""), units),
    ):
        text = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}".format(*lead)
        for _ in range(2):
            text += "  {:>7}  {:>6}  {:>6}  {:>6}".format(*each)
        rows.append(text + " ")
    return "#\n" + "\n".join(rows) + "\n"


def line(row: Row) -> str:
    """One row, out of place and in place."""
    text = f"{row.size_bytes:12d}  {row.count:12d}  {row.datatype:>8}  {row.operation:>6}  {row.root:6d}"
    wrong = "   N/A" if row.wrong is None else f"{row.wrong:>6g}"
    half = f"  {number(row.time_ps / PS_PER_US, 7)}  {number(row.alg_gbps, 6)}  {number(row.bus_gbps, 6)}  {wrong}"
    return text + half + half + "\n"


ERRORS = {  # ncclGetErrorString
    "ncclSystemError": "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "ncclInternalError": "internal error - please report this issue to the NCCL developers",
    "ncclInvalidUsage": "invalid usage (run with NCCL_DEBUG=WARN for details)",
    "ncclRemoteError": "remote process exited or there was a network error",
}


def failure(host: str, result: str, last: str) -> str:
    """The line that a failing NCCL call leaves behind; `last` is NCCL's last error."""
    return f"{host}: Test NCCL failure common.cu '{ERRORS[result]} / {last}'\n"


def ranges(run: Run, rows: Sequence[Row]) -> dict[str, ErrorRange]:
    """Return what collectives like these were off by on machines that were held out, by regime of size."""
    known = error_ranges("collective")
    fabric = run.communicator.twin.fabric
    gpu = fabric.templates[0].gpu_type
    hosts = len(set(run.communicator.placement.host_of_node.tolist()))
    first = COLLECTIVE.known if gpu in known.compared["gpus"] else COLLECTIVE.without_hardware
    outside = []
    if first != COLLECTIVE.known:
        outside.append(f"no measured collective on {gpu} was compared")
    if run.ranks > known.compared["most_gpus"]:
        outside.append(f"{run.ranks:,} GPUs, compared were up to {known.compared['most_gpus']:,}")
    found = {}
    for regime in dict.fromkeys(regime_of(row.size_bytes) for row in rows):
        more = list(outside)
        largest = max(row.size_bytes for row in rows if regime_of(row.size_bytes) == regime)
        if largest > known.compared["largest_bytes"]:
            more.append(f"{largest:,} bytes, compared were up to {known.compared['largest_bytes']:,}")
        span = ONE_DOMAIN if hosts == 1 else BETWEEN_HOSTS
        found[regime] = known.of((first, regime, span), more)
    return dict(sorted(found.items(), key=lambda item: [name for name, *_ in REGIMES].index(item[0])))


def range_lines(run: Run, rows: Sequence[Row]) -> list[str]:
    """Return a line for each regime of size: the range of measured over predicted time."""
    lines = ["Measured over predicted time, by machines like this one that were held out:"]
    for regime, found in ranges(run, rows).items():
        (a, b), (c, d) = found.of_time(1.0)
        lines.append(
            f"  {regime}: half {a:.2f} to {b:.2f}, nine in ten {c:.2f} to {d:.2f}; {found.basis}",
        )
        lines += [f"  outside of what was compared: {each}" for each in found.outside]
    return lines


def closing(run: Run, rows: Sequence[Row], *, notes: Sequence[str]) -> str:
    """Everything under the table."""
    average = average_bus_gbps(rows)
    lines = [
        f"# {'Out of bounds values':<20} : {wrong_rows(rows)} {'FAILED' if wrong_rows(rows) else 'OK'}",
        f"# {'Avg bus bandwidth':<20} : {average:g} ",
        *(f"# {note}" for note in notes),
        *(f"# {line}" for line in range_lines(run, rows)),
        "#",
        f"# Collective test concluded: {run.options.test.program}",
        "#",
    ]
    return "\n".join(lines) + "\n"


def wrong_rows(rows: Sequence[Row]) -> int:
    """Rows with wrong elements, out of place and in place."""
    return 2 * sum(bool(row.wrong) for row in rows)


def as_json(run: Run, rows: Sequence[Row], *, arguments: Sequence[str], environment: Sequence[str]) -> str:
    """The file that -J writes."""
    options, average = run.options, average_bus_gbps(rows)
    step = {"step_factor": options.step_factor} if options.step_factor > 1 else {"step_bytes": options.step_bytes}
    content = {
        "version": FILE_VERSION,
        "start_time": None,
        "args": list(arguments),
        "env": list(environment),
        "nccl_version": version_code(run.communicator.version),
        "config": {
            "nthreads": options.threads,
            "ngpus": options.gpus,
            "minimum_bytes": options.min_bytes,
            "maximum_bytes": options.max_bytes,
            **step,
            "warmup_iters": options.warmup,
            "iterations": options.iterations,
            "aggregated_iterations": 1,
            "validation": options.check,
            "graph": 0,
            "blocking_collectives": "false",
            "parallel_init": "false",
            "devices": list(devices(run, options)),
        },
        "results": [_result(run, row) for row in rows],
        "out_of_bounds": {"count": wrong_rows(rows), "okay": "false" if wrong_rows(rows) else "true"},
        "average_bus_bandwidth": {"bandwidth": average, "okay": "unchecked"},
        "ranges": [{"regime": regime, **found.data()} for regime, found in ranges(run, rows).items()],
        "end_time": None,
    }
    return json.dumps(content, indent=2) + "\n"


def _result(run: Run, row: Row) -> dict[str, Any]:
    measured = {
        "time": row.time_ps / PS_PER_US,
        "alg_bw": row.alg_gbps,
        "bus_bw": row.bus_gbps,
        "nwrong": None if row.wrong is None else float(row.wrong),
    }
    chosen = None
    if row.choice is not None:
        chosen = {
            "algorithm": ALGORITHMS[row.choice.algorithm],
            "protocol": PROTOCOLS[row.choice.protocol],
            "channels": row.choice.channels,
            "threads": row.choice.threads,
            "model_time": row.choice.time_us,
        }
    return {
        "size": row.size_bytes,
        "count": row.count,
        "type": row.datatype,
        "redop": row.operation,
        "root": f"{row.root:6d}",
        "out_of_place": measured,
        "in_place": measured,
        "actual_iterations": run.options.iterations,
        "experiment_name": "",
        "nccl": chosen,
    }

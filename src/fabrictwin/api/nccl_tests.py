"""nccl-tests from Python."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.progress import silent

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.catalog.error_ranges import ErrorRange
    from fabrictwin.nccl.settings.settings import Settings
    from fabrictwin.tools.nccl_tests.perf import Options, Row, Run


class NcclTest:
    """Rows of a test, and what it printed."""

    def __init__(self, detail: Run, rows: list[Row], text: str, settings: Settings) -> None:
        from fabrictwin.tools.nccl_tests.perf_text import wrong_rows

        self.detail, self.text, self.settings = detail, text, settings
        self.wrong = bool(wrong_rows(rows))  # checked data came out otherwise
        self._rows = rows

    @property
    def rows(self) -> Table:
        """One row a size: time in us, algorithm and bus bandwidth in GB/s, NCCL's choice."""
        rows = [
            (
                row.size_bytes,
                row.time_ps / 1e6,
                row.alg_gbps,
                row.bus_gbps,
                None if row.choice is None else row.choice.algorithm.name,
                None if row.choice is None else row.choice.protocol.name,
                row.wrong,
            )
            for row in self._rows
        ]
        names = (
            "size_bytes",
            "time_us",
            "algbw_gbytes_per_s",
            "busbw_gbytes_per_s",
            "algorithm",
            "protocol",
            "wrong",
        )
        return Table.of_rows(names, rows)

    @property
    def ranges(self) -> dict[str, ErrorRange]:
        """The range of measured over predicted time, by regime of size, from machines that were held out."""
        from fabrictwin.tools.nccl_tests.perf_text import ranges

        return ranges(self.detail, self._rows)

    def json(self, arguments: Sequence[str] = ()) -> str:
        """Return the test's JSON file, as nccl-tests' -J writes it."""
        from fabrictwin.tools.nccl_tests.perf_text import as_json

        environment = [f"{name}={value}" for name, value in self.settings.given]
        return as_json(self.detail, self._rows, arguments=list(arguments), environment=environment)

    def __repr__(self) -> str:
        from fabrictwin.tools.nccl_tests.perf import average_bus_gbps

        test, average = self.detail.options.test, average_bus_gbps(self._rows)
        return f"<NcclTest {test.program}, {self.detail.ranks:,} ranks: {average:.2f} GB/s on average>"

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.rows._repr_html_()


# nccl-tests' own names of what the record of a test calls otherwise
_FIELDS = {
    "minbytes": "min_bytes",
    "maxbytes": "max_bytes",
    "stepbytes": "step_bytes",
    "stepfactor": "step_factor",
    "ngpus": "gpus",
    "nthreads": "threads",
    "iters": "iterations",
    "warmup_iters": "warmup",
    "check": "check",
    "datatype": "datatype",
    "op": "operation",
    "root": "root",
    "run_cycles": "cycles",
}
_SIZES = ("minbytes", "maxbytes", "stepbytes")
_PLACE = ("hosts", "np", "nccl_version", "nccl_conf", "source")


def nccl_tests(
    test: str,
    cluster: Source,
    *,
    fidelity: str = "flow",
    environment: Mapping[str, str] | None = None,
    out: TextIO | None = None,
    notes: TextIO | None = None,
    stage: Stage | None = None,
    **options: Any,
) -> NcclTest:
    """Measure a collective at growing sizes, as nccl-tests does.

    `test` is its name (all_reduce_perf, ...). `options` are the command's long ones: minbytes, maxbytes, stepbytes
    (sizes as nccl-tests reads them: 8, "64K", "1G"), stepfactor, ngpus, nthreads, iters, warmup_iters, check,
    datatype, op, root, run_cycles, hosts, np, nccl_version, nccl_conf; and source, the cluster's name in the head
    of the output. `environment` holds NCCL_* variables. The test prints to `out` while it runs, notes on settings
    go to `notes`. Raises ConfigError, and SimulatedError where NCCL does not come up.
    """
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.nccl.settings.spec_section import settings_here
    from fabrictwin.tools.nccl_tests import perf
    from fabrictwin.tools.nccl_tests.perf_run import play
    from fabrictwin.twin.routed_twin import make_twin

    watcher, text = stage or silent, _Copy(out)
    asked, place = _asked(test, options), {name: options.get(name) for name in _PLACE}
    spec = load(cluster)
    settings = settings_here(spec, environment or {}, release=place["nccl_version"] or "", conf=place["nccl_conf"])
    for note in settings.notes if notes is not None else ():
        print(f"note: {note}", file=notes)
    watcher("compiling the fabric")
    twin = make_twin(spec, build(spec.cluster, spec=spec))
    per_process = asked.gpus * asked.threads
    rank_node = perf.ranks_of(twin, gpus_per_process=per_process, hosts=place["hosts"], processes=place["np"])
    asked, reduced = perf.limited(asked, twin, rank_node)
    watcher("initialising")
    run = perf.prepare(
        twin,
        asked,
        settings=settings,
        rank_node=rank_node,
        packet=spec.run.packet,
        seed=spec.run.seed,
        corrections=None if spec.calibration is None else spec.calibration.collectives,
    )
    source = place["source"] or (cluster if isinstance(cluster, str) else str(spec.path or spec.name))
    rows = play(run, text, fidelity=fidelity, source=source, stage=watcher, reduced=reduced)
    return NcclTest(run, rows, text.getvalue(), settings)


def _asked(test: str, options: Mapping[str, Any]) -> Options:
    """Raises ConfigError for a test or an option that nccl-tests does not have."""
    from fabrictwin.tools.nccl_tests import perf

    if test not in perf.TESTS:
        known = tuple(perf.TESTS)
        raise ConfigError(
            f"got {test!r}, expected one of {', '.join(known)}{did_you_mean(test, known)}", key="test"
        )
    known = (*_FIELDS, *_PLACE)
    for name in options:
        if name not in known:
            raise ConfigError(f"expected an option of nccl-tests{did_you_mean(name, known)}", key=name)
    values = {_FIELDS[name]: value for name, value in options.items() if name in _FIELDS}
    for name in _SIZES:
        if isinstance(options.get(name), str):
            try:
                values[_FIELDS[name]] = perf.parse_size(options[name])
            except ConfigError as error:
                raise error.within(key=name) from None
    return perf.Options(test=perf.TESTS[test], **values)


class _Copy(io.StringIO):
    """Keeps what is written, and hands it on."""

    def __init__(self, out: TextIO | None) -> None:
        super().__init__()
        self._out = out

    def write(self, text: str) -> int:
        if self._out is not None:
            self._out.write(text)
        return super().write(text)

    def flush(self) -> None:
        if self._out is not None:
            self._out.flush()

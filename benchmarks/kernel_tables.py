"""Constants and residuals of kernels from measurements, and what they are off by on rows that were held out.

    python benchmarks/kernel_tables.py FOLDER --write src/fabrictwin/catalog/data
    python benchmarks/kernel_tables.py FOLDER

FOLDER holds tables of NVIDIA's aiconfigurator database, whose names tell the GPU (`h100_sxm` and so on). Held out
are, with everything fitted again: a fifth of the rows in turn; of products a fifth of all pairs of n and k in
turn; and each GPU in turn, which then takes the table of the nearest other. Errors are
|predicted / measured - 1|, median and 95th percentile.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.catalog.kernels import CONSTANTS, RESIDUALS
from fabrictwin.workload.operators.families import WIDENED
from fabrictwin.workload.operators.measurements import Measured, read_measured
from fabrictwin.workload.operators.tables import Table, chip_of, fit_table, generation, nearest

GPUS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "gb200": "gb200", "b200_sxm": "b200-sxm"}
LIBRARIES = {"bf16": "cublas", "fp8": "cutlass", "fp4": "cutlass"}
OTHER_LIBRARY = "vllm"
# Experts whose activation is not SwiGLU as it stands, which Blackwell's fastest kernels do not compute: vLLM takes
# others for them (its choice of backends asks for swiglu_limit and the activation). By (hidden, experts a token,
# experts): MiniMax M3, whose SwiGLU is clamped, and Gemma 4 26B A4B, whose gate is a GELU.
ACTIVATIONS = {(6144, 4, 128): "clamped", (2816, 8, 128): "gelu"}
# Experts in MXFP4, by (hidden, experts a token, experts), that take as long on B200 as on H100: Marlin runs them.
WIDENED_MODELS = {(3584, 16, 896)}
# Products of fp8 with a scale for every block were measured without a graph: the host's time. Of weights of 4 bits
# under vLLM 0.18 the collector measured another kernel than servers take (int4 by Triton's, not Marlin's), or did
# not tell it that ranks share experts (MXFP4: eight ranks take as long as one).
LEFT_OUT = {("products", "fp8-block", gpu) for gpu in GPUS.values()} | {
    ("experts", "int4", "h200-sxm"),
    ("experts", "mxfp4", "h200-sxm"),
}
TYPES = ("bf16", "fp8", "fp8-block", "fp4", "int4", "mxfp4")
FOLDS = 5
HEAD = """\
# Constants of kernels by family, GPU, type and library; docs/kernels.md says what they are. Made by
# benchmarks/kernel_tables.py from NVIDIA's measurements in aiconfigurator's database (Apache-2.0).
source:
  title: NVIDIA aiconfigurator, kernels measured under vLLM 0.18 and 0.24 (Apache-2.0)
  url: https://github.com/ai-dynamo/aiconfigurator
tables:
"""


def read(folder: Path) -> Iterator[tuple[str, Measured]]:
    marlin: dict[tuple[str, str], list[Measured]] = {}
    for path in sorted(folder.iterdir()):
        gpu = next((name for found, name in GPUS.items() if f"_{found}_" in path.name), None)
        if gpu is None or not path.name.endswith((".csv", ".csv.gz", ".parquet")):
            continue
        for measured in read_measured(path):
            kind = format_name(measured)
            if kind in TYPES and (measured.family, kind, gpu) not in LEFT_OUT:
                kept, widened = by_kernel(measured)
                if len(kept.times_us):
                    yield from ((gpu, one) for one in by_activation(gpu, kept))
                if len(widened.times_us):
                    marlin.setdefault((gpu, widened.type), []).append(widened)
    for (gpu, _), parts in marlin.items():
        shapes, times = (np.concatenate([getattr(one, name) for one in parts]) for name in ("shapes", "times_us"))
        yield gpu, replace(parts[0], shapes=shapes, times_us=times)


def by_kernel(measured: Measured) -> tuple[Measured, Measured]:
    """(what vLLM's choice for the type runs, what Marlin runs): experts in int4, and in MXFP4 some models'."""
    kind, _, load = measured.type.partition("/")
    rows = np.full(len(measured.times_us), kind == "int4")
    if kind == "mxfp4":
        models = measured.shapes[:, [1, 3, 4]].astype(int).tolist()
        rows = np.array([tuple(model) in WIDENED_MODELS for model in models])
    widened = replace(part(measured, np.flatnonzero(rows)), type=f"{WIDENED}/{load}")
    return part(measured, np.flatnonzero(~rows)), widened


def by_activation(gpu: str, measured: Measured) -> Iterator[Measured]:
    """Experts of plain SwiGLU, then of each other activation; on Hopper one kernel does all."""
    if measured.family != "experts" or generation(gpu) < generation("b200-sxm"):
        yield measured
        return
    models = measured.shapes[:, [1, 3, 4]].astype(int).tolist()
    kinds = np.array([ACTIVATIONS.get((hidden, top_k, count), "") for hidden, top_k, count in models])
    for kind in ("", *ACTIVATIONS.values()):
        if (kinds == kind).any():
            found = part(measured, np.flatnonzero(kinds == kind))
            yield replace(found, type=f"{found.type}/{kind}") if kind else found


def format_name(measured: Measured) -> str:
    return measured.type.partition("/")[0]


def key_of(gpu: str, measured: Measured) -> tuple[str, str, str, str]:
    products = measured.family == "products"
    library = LIBRARIES[measured.type] if products else OTHER_LIBRARY
    return measured.family, gpu, measured.type, library


def part(measured: Measured, rows: np.ndarray) -> Measured:
    return replace(measured, shapes=measured.shapes[rows], times_us=measured.times_us[rows])


def by_rows(measured: Measured) -> np.ndarray:
    return np.random.default_rng(1).integers(0, FOLDS, len(measured.times_us))


def by_weights(measured: Measured) -> np.ndarray:
    weights = measured.shapes[:, 1] * 1e9 + measured.shapes[:, 2]
    found, place = np.unique(weights, return_inverse=True)
    return np.random.default_rng(1).integers(0, FOLDS, len(found))[place]


def held_out(gpu: str, measured: Measured, folds: Callable[[Measured], np.ndarray]) -> F64:
    """Return errors of all rows, each by a table of the other folds."""
    fold, off = folds(measured), np.zeros(len(measured.times_us))
    chip = chip_of(gpu, measured.family, measured.type)
    for out in range(FOLDS):
        inside, outside = np.flatnonzero(fold != out), np.flatnonzero(fold == out)
        table = fit_table(gpu, part(measured, inside))
        off[outside] = table.time_us(chip, measured.shapes[outside]) / measured.times_us[outside] - 1
    return np.abs(off)


def say(what: str, off: F64) -> None:
    middle, most = 100 * np.quantile(off, [0.5, 0.95])
    print(f"  {what:56s} {len(off):7d} {middle:6.1f} {most:6.1f}", flush=True)


def errors(found: list[tuple[str, Measured]]) -> None:
    pooled: dict[tuple[str, str], list[F64]] = {}
    for gpu, measured in found:
        off = held_out(gpu, measured, by_rows)
        say(f"{measured.family} {measured.type} {gpu}: rows", off)
        pooled.setdefault((measured.family, format_name(measured)), []).append(off)
        if measured.family == "products":
            say(f"{measured.family} {measured.type} {gpu}: pairs of n and k", held_out(gpu, measured, by_weights))
    for (family, name), parts in pooled.items():
        say(f"{family} {name}, all GPUs: rows", np.concatenate(parts))


def gpus_left_out(found: list[tuple[str, Measured]]) -> None:
    tables = {key_of(gpu, one): fit_table(gpu, one) for gpu, one in found}
    pooled: dict[tuple[str, str], list[F64]] = {}
    for gpu, measured in found:
        family, _, name, library = key_of(gpu, measured)
        others = {key[1]: table for key, table in tables.items() if (key[0], *key[2:]) == (family, name, library)}
        others.pop(gpu, None)
        if not others:
            continue
        table = others[nearest(gpu, others)]
        if generation(table.of) != generation(gpu):
            table = replace(table, residuals=None)
        off = np.abs(table.time_us(chip_of(gpu, family, name), measured.shapes) / measured.times_us - 1)
        say(f"{family} {name} {gpu}: the GPU, by {table.of}", off)
        pooled.setdefault((family, format_name(measured)), []).append(off)
    for (family, name), parts in pooled.items():
        say(f"{family} {name}, all GPUs: the GPU", np.concatenate(parts))


def write(folder: Path, tables: dict[tuple[str, ...], Table]) -> None:
    """Write tables in place of those of the same keys; others that the folder has stay, byte for byte."""
    lines, steps = {}, {}
    if (folder / CONSTANTS).exists():
        _, _, kept = (folder / CONSTANTS).read_text(encoding="utf-8").partition("tables:\n")
        lines = {line.partition(":")[0].strip(): line for line in kept.splitlines(keepends=True)}
        with np.load(folder / RESIDUALS, allow_pickle=False) as found:
            steps = {key: found[key] for key in found.files}
    for key, table in tables.items():
        values = ", ".join(f"{name}: {value:g}" for name, value in table.constants.items())
        lines[" ".join(key)] = f"  {' '.join(key)}: {{{values}}}\n"
        if table.residuals is not None:
            steps["/".join(key)] = table.residuals.steps
    (folder / CONSTANTS).write_text("".join([HEAD, *lines.values()]), encoding="utf-8")
    np.savez_compressed(folder / RESIDUALS, allow_pickle=False, **steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="write tables, of --only or all; judge nothing"
    )
    parser.add_argument("--gpus", action="store_true", help="judge GPUs that are left out alone")
    parser.add_argument("--only", default="", help="tables whose names in the constants begin so")
    args = parser.parse_args()
    found = [(gpu, one) for gpu, one in read(args.folder) if " ".join(key_of(gpu, one)).startswith(args.only)]
    if args.write:
        write(args.write, {key_of(gpu, one): fit_table(gpu, one) for gpu, one in found})
        return
    print(f"  {'held out':56s} {'rows':>7s} {'median':>6s} {'p95 %':>6s}")
    gpus_left_out(found)
    if not args.gpus:
        errors(found)


if __name__ == "__main__":
    main()

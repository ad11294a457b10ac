"""The published measurements: where they lie, and the two files read and checked.

`training.csv` holds one row a measurement; `training.yaml` says where each set was published, on which hardware,
what it leaves unsaid, and the models' sizes. They stand in `validation/` of the repository and inside the wheel.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text
from fabrictwin.base.validation_errors import config_errors
from fabrictwin.base.yamlfile import line_of, read_yaml_file

TABLE, TEXTS = "training.csv", "training.yaml"

Quantity = Literal["step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "hardware_tflops_per_gpu"]


def _blank(value: object) -> object:
    return None if value == "" else value


Number = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_blank)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=Section)


class Row(Section):
    """One published step. None where the source does not say, or the layout has none."""

    set: str
    row: str
    model: str
    hardware: str
    gpus: Annotated[int, Field(ge=1)]
    precision: Literal["fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
    global_batch: Annotated[int, Field(ge=1)]
    micro_batch: Number
    sequence: Annotated[int, Field(ge=1)]
    tp: Number
    pp: Number
    cp: Number
    vp: Number
    ep: Number
    fsdp: Number
    recompute: Annotated[Literal["none", "selective", "full"] | None, BeforeValidator(_blank)]
    quantity: Quantity
    value: Annotated[float, Field(gt=0)]
    memory_gib: Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(_blank)]


class Hardware(Section):
    """A machine of the rows as a cluster: `family` is what errors are grouped by."""

    family: str
    host: str
    technology: Literal["infiniband", "ethernet"]
    switch: str
    topology: Literal["rail-optimised", "fat-tree"]
    # throughput of attention by whose kernels a framework calls: forward, backward where it does not follow
    attention: dict[str, str] = {}
    attention_backward: dict[str, str] = {}
    assumptions: tuple[str, ...] = ()


class Recipe(Section):
    """Settings of some rows of a set beyond its `settings`; every list that is given must name the row's own."""

    models: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()  # beginnings of rows' names, such as a release
    settings: dict[str, Any] = {}  # of `workload.training`, nested as there
    why: str = ""  # an assumption; empty where the source says so

    def of(self, row: Row) -> bool:
        named = (self.models, row.model), (self.hardware, row.hardware), (self.precisions, row.precision)
        alike = all(not known or value in known for known, value in named)
        return alike and (not self.rows or row.row.startswith(self.rows))


class Calibrated(Section):
    """Constants of `workload.training` that were fitted together, and to which rows: those are no predictions."""

    constants: Annotated[tuple[str, ...], Field(min_length=1)]
    rows: Annotated[tuple[str, ...], Field(min_length=1)]


class Set(Section):
    """One publication. `settings` is what ran, `assumptions` what of it the source leaves unsaid."""

    framework: str
    source: str
    note: str = ""
    micro_batch: dict[str, int] = {}
    vp: int | None = None
    kernels: str = ""  # whose attention, where it is not the catalog's
    settings: dict[str, Any] = {}
    calibrated_from: tuple[Calibrated, ...] = ()
    eager: tuple[str, ...] = ()  # rows whose kernels a compiler did not fuse
    selective: dict[str, Any] = {}  # settings beside `settings` where the row recomputes selectively
    full: dict[str, Any] = {}  # and where it recomputes whole layers
    recipes: tuple[Recipe, ...] = ()  # in order: what comes later adds to what came before
    assumptions: tuple[str, ...] = ()
    unknown: str = ""  # why no row of the set can be predicted


class Texts(Section):
    hardware: dict[str, Hardware]
    sets: dict[str, Set]
    models: dict[str, dict[str, Any]]


@record
class Measurements:
    """All rows, in order, with what they refer to."""

    folder: Path
    rows: tuple[Row, ...]
    texts: Texts


def find_data(given: Path | None = None, table: str = TABLE) -> Path:
    """The folder of the measurements: as given, the wheel's, or the checkout's. Raises ConfigError."""
    if given is not None:
        if not (given / table).is_file():
            raise ConfigError(f"got a folder without {table}, expected the validation data", file=given)
        return given
    here = Path(__file__).resolve().parent
    for folder in (here / "measurements", here.parents[2] / "validation"):
        if (folder / table).is_file():
            return folder
    raise ConfigError(
        "the published measurements are not part of this installation; give their folder with --data "
        "(validation/ of the repository)",
        key="--data",
    )


def left_out(got: str, known: Iterable[str]) -> str:
    """The hardware of these that `--leave-out` names, in any case of letters. Raises ConfigError."""
    names = {name.lower(): name for name in known}
    if got.lower() not in names:
        hint = did_you_mean(got, names.values())
        raise ConfigError(f"got {got!r}, expected one of {', '.join(names.values())}{hint}", key="--leave-out")
    return names[got.lower()]


def read_data(folder: Path) -> Measurements:
    """The rows and their texts. Raises ConfigError with file and line."""
    texts = read_texts(folder / TEXTS, Texts)
    return Measurements(folder, tuple(_rows(folder / TABLE, texts)), texts)


def read_texts(path: Path, kind: type[S]) -> S:
    """Model of what a YAML file says about rows. Raises ConfigError with file and line."""
    data, lines = read_yaml_file(path)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = config_errors(error, kind, data=data)[0]
        line = line_of(lines, tuple((found.key or "").split(".")))
        raise ConfigError(found.message, file=path, line=line, key=found.key) from None


def read_table(path: Path, kind: type[S]) -> list[tuple[int, S]]:
    """Rows of a CSV after its `#` lines, each with its line. Raises ConfigError with file and line."""
    lines = read_text(path).splitlines()
    first = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    rows = []
    reader = csv.DictReader(lines[first:], restkey="what follows the last column", strict=True)
    for data in _records(reader, path, first):
        line = first + reader.line_num
        try:
            rows.append((line, kind.model_validate(data)))
        except ValidationError as error:
            found = config_errors(error, kind, data=data)[0]
            raise ConfigError(found.message, file=path, line=line, key=found.key) from None
    return rows


def _records(reader: csv.DictReader[str], path: Path, first: int) -> Iterator[dict[str, Any]]:
    """Records of a reader. Raises ConfigError for a line that is no CSV."""
    try:
        yield from reader
    except csv.Error as error:
        raise ConfigError(f"is no CSV: {error}", file=path, line=first + reader.line_num) from None


def _rows(path: Path, texts: Texts) -> list[Row]:
    rows, seen = [], set()
    for line, row in read_table(path, Row):
        for key, known in (("set", texts.sets), ("hardware", texts.hardware), ("model", texts.models)):
            value = getattr(row, key)
            if value not in known:
                hint = did_you_mean(value, known)
                raise ConfigError(f"got {value!r}, expected a key of {TEXTS}{hint}", file=path, line=line, key=key)
        if (row.set, row.row) in seen:
            raise ConfigError(f"got {row.row!r} twice in {row.set}", file=path, line=line, key="row")
        seen.add((row.set, row.row))
        rows.append(row)
    return rows

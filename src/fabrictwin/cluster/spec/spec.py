"""The spec: the one file that says what is built, what runs on it, what is broken and how to simulate it.

YAML in, or the same objects from Python. `workload` stays opaque here: the workload room checks it with
`Spec.validate_section`, and its errors carry file and line all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, TypeVar

from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.textfile import STDIN, name_of
from fabrictwin.base.units import Duration
from fabrictwin.base.validation_errors import config_errors
from fabrictwin.base.yamlfile import Lines, Path_, line_of, read_yaml_file, undotted
from fabrictwin.cluster.spec.calibration_file import CalibrationFile, beneath
from fabrictwin.cluster.spec.cluster_section import Cluster, Count, Model, Seed
from fabrictwin.cluster.spec.edits import set_key
from fabrictwin.cluster.spec.fault_section import Fault, GpuFault, LinkFault, NoiseFault, SwitchFault, told_apart
from fabrictwin.cluster.spec.packet_section import Packet
from fabrictwin.cluster.spec.qos_section import Qos
from fabrictwin.cluster.spec.subnet_manager_section import SubnetManager

M = TypeVar("M", bound=BaseModel)

WORKLOADS = {
    "training": ("a training job", "run"),
    "captured": ("a captured job", "run"),
    "serving": ("a server", "serve"),
}  # and whose they are
SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


class Origin:
    """Where the parts of a spec stood: which file and line. Two specs of the same content are equal."""

    def __init__(self, folder: Path, path: Path | None) -> None:
        self.folder = folder
        self.path = path
        self.parts: list[tuple[Path_, str, Lines]] = []  # what stands below a key path: its file, its lines

    @classmethod
    def reading(cls, path: str | Path, stdin: TextIO | None) -> Origin:
        """Origin of what `read_yaml_file` reads; from stdin, paths are relative to the current folder."""
        return cls(Path(), None) if name_of(path, stdin) == STDIN else cls(Path(path).parent, Path(path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    __hash__ = None  # type: ignore[assignment]

    def add(self, prefix: Path_, file: str, lines: Lines) -> None:
        self.parts.append((prefix, file, lines))

    def locate(self, key: Path_) -> tuple[str | None, int | None]:
        for prefix, file, lines in sorted(self.parts, key=lambda part: -len(part[0])):
            if key[: len(prefix)] == prefix:
                return file, line_of(lines, key[len(prefix) :])
        return None, None


class Placement(Model):
    """Which hosts the ranks live on, and in which order: contiguous by leaf switch unless it says otherwise."""

    hosts: tuple[str, ...] = ()
    order: Literal["contiguous", "scattered"] = "contiguous"
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_way(self) -> Placement:
        if self.hosts and (self.order != "contiguous" or self.seed):
            raise ValueError("got hosts together with order or seed, expected either")
        if self.order == "contiguous" and self.seed:
            raise ValueError("got a seed, which means nothing with order: contiguous")
        return self


Positive = Annotated[float, Field(gt=0, le=1e30)]


class Compare(Model):
    """Published figures of this very job, to stand beside the prediction, and where they were published."""

    source: Annotated[str, Field(min_length=1)]
    hardware_tflops_per_gpu: Positive | None = None
    model_tflops_per_gpu: Positive | None = None
    tokens_per_s_per_gpu: Positive | None = None
    step_time: Duration | None = None
    mfu: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _something(self) -> Compare:
        if all(getattr(self, key) is None for key in type(self).model_fields if key != "source"):
            raise ValueError("got no figure, expected at least one, such as hardware_tflops_per_gpu: 148")
        return self


class Run(Model):
    """How to simulate. `out` is the folder to write, relative to where the command runs."""

    fidelity: Literal["flow", "analytic", "packet"] = "flow"
    seed: Seed = 1
    fold: Annotated[bool, Field(strict=True)] = True
    collectives: Literal["nccl", "simple"] = "nccl"  # of a training job: simple are rings over all adapters
    out: str | None = None
    check_memory: Literal["note", "error"] = "note"  # what a layout that does not fit is
    compare: Compare | None = None
    packet: Packet | None = None  # of the packet engine; a run of another fidelity notes that it was not used
    subnet_manager: SubnetManager | None = None  # InfiniBand: managers that notice what breaks and route anew


class Spec(Model):
    """A whole spec file."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: Annotated[str, Field(min_length=1, max_length=200)] = "unnamed"
    cluster: Cluster
    calibration: CalibrationFile | None = (
        None  # or the path of its file: constants fitted to one's own measurements
    )
    workload: Annotated[dict[str, Any], Field(default_factory=dict)]
    placement: Placement = Placement.model_construct()
    faults: tuple[Fault, ...] = ()
    run: Run = Run.model_construct()
    nccl: dict[str, bool | int | float | str] | None = (
        None  # its release and NCCL_* variables; the nccl room checks it
    )
    jitter: dict[str, Any] | None = None  # what is uneven, for `fabrictwin jitter`; the study room checks it
    campaign: dict[str, Any] | None = None  # what fails over months, for `fabrictwin campaign`; checked there too

    _origin: Origin = PrivateAttr(default_factory=lambda: Origin(Path(), None))

    @field_validator("faults", mode="before")
    @classmethod
    def _told_apart(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple(told_apart(item, index) for index, item in enumerate(value))

    @field_validator("calibration", mode="before")
    @classmethod
    def _calibration_file(cls, value: Any, info: ValidationInfo) -> Any:
        origin = (info.context or {}).get("origin") or Origin(Path(), None)
        return _read_part(value, origin, "calibration", "compute_share, products, collectives")

    @field_validator("workload", mode="after")
    @classmethod
    def _calibrated(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        found = info.data.get("calibration")
        calibrated: dict[str, Any] = value if found is None else beneath(value, found)
        return calibrated

    @field_validator("cluster", mode="before")
    @classmethod
    def _other_file(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return value
        origin = (info.context or {}).get("origin") or Origin(Path(), None)
        return _read_cluster(value, origin)

    @model_validator(mode="after")
    def _one_kind_of_collectives(self) -> Spec:
        if self.run.collectives == "nccl":
            return self
        kind = next((kind for kind in WORKLOADS if kind != "training" and kind in self.workload), None)
        if kind is not None:
            message = f"got simple with workload.{kind}, expected nccl: only a training job has simple collectives"
            raise ConfigError(message, key="run.collectives")
        if self.nccl is not None:
            message = "got simple beside nccl:, expected one of the two: simple collectives take nothing of NCCL"
            raise ConfigError(message, key="run.collectives")
        return self

    def model_post_init(self, context: Any) -> None:
        if isinstance(context, Mapping) and "origin" in context:
            self._origin = context["origin"]

    @property
    def path(self) -> Path | None:
        """The file that this spec was read from."""
        return self._origin.path

    @property
    def qos(self) -> Qos | None:
        """Return `network.qos`, None where the cluster says nothing of it."""
        found: Qos | None = getattr(self.cluster, "qos", None)
        return found

    @property
    def folder(self) -> Path:
        """Return the folder that paths in the spec are relative to."""
        return self._origin.folder

    def locate(self, key: str) -> tuple[str | None, int | None]:
        """File and line of a key such as `workload.training.tp`, or of the nearest thing that holds it."""
        return self._origin.locate(undotted(key))

    def error(self, key: str, message: str) -> ConfigError:
        """A ConfigError about a key, with its file and line."""
        file, line = self.locate(key)
        return ConfigError(message, file=file, line=line, key=key)

    def validate_section(self, key: str, model: type[M], data: Any = None) -> M:
        """Validate what stands at `key`, as a model of another room. Raises ConfigError with file and line.

        `data` is what to read where it is not what the file says (defaults filled in, say).
        """
        path = undotted(key)
        if data is None:
            data = self._at(path)
            self._refuse_other_kind(key, model, data)
        try:
            return model.model_validate(data)
        except ValidationError as error:
            found = config_errors(error, model, data=data, path=path)[0]
            raise self.error(found.key or key, found.message) from None

    def _refuse_other_kind(self, key: str, model: type[BaseModel], data: Any) -> None:
        """Raise ConfigError where the workload is whole, and another command's."""
        for kind, (what, command) in WORKLOADS.items():
            if key == "workload" and kind not in model.model_fields and isinstance(data, dict) and kind in data:
                expected = " or ".join(f"workload.{name}" for name in model.model_fields)
                message = f"got {what}, expected {expected}; fabrictwin {command} takes this one"
                raise self.error(f"workload.{kind}", message)

    def _at(self, path: Path_) -> Any:
        current: Any = self.to_dict()
        for part in path:
            try:
                current = current[part]
            except (KeyError, IndexError, TypeError):
                return {}
        return current

    def with_(self, edits: Mapping[str, Any] | None = None, /, **keys: Any) -> Spec:
        """Return the spec with other values at some keys, checked anew.

        `edits` names keys with dots (`{"workload.training.parallel.tp": 4}`); keywords take `__` for a dot
        (`cluster__hosts__count=8`, `run={"fidelity": "packet"}`). A mapping is laid over what stands there.
        Published figures to compare with (`run.compare`) go where the job changes. Raises ConfigError.
        """
        asked = dict(edits or {}) | {key.replace("__", "."): value for key, value in keys.items()}
        data = self.to_dict()
        for key, value in asked.items():
            set_key(data, key, value)
        if any(key.partition(".")[0] not in ("run", "name") for key in asked):
            without_figures(data)
        return read_spec(data, Origin(self.folder, self.path))

    def to_dict(self) -> dict[str, Any]:
        """Plain data with units, from which `Spec.model_validate` makes an equal spec."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def without_figures(data: dict[str, Any]) -> None:
    """Take the published figures to compare with out of a spec's plain data, modified in place."""
    if isinstance(run := data.get("run"), dict):
        run.pop("compare", None)


def _read_part(value: Any, origin: Origin, key: str, keys: str) -> Any:
    """Return the keys of the file that stands in place of a section, which holds no paths."""
    if not isinstance(value, str):
        return value
    path = origin.folder / value
    data, lines = read_yaml_file(path)
    if not isinstance(data, dict):
        raise ConfigError(f"expected keys such as {keys}", file=path, line=1)
    origin.add((key,), str(path), lines)
    return data


def _read_cluster(name: str, origin: Origin) -> Any:
    path = origin.folder / name
    data, lines = read_yaml_file(path)
    if not isinstance(data, dict):
        raise ConfigError("expected the keys of a cluster, such as hosts and network", file=path, line=1)
    # inlined, its paths must be right from the spec's own folder
    move_paths(data, lambda file: os.path.relpath(path.parent / file, origin.folder))
    origin.add(("cluster",), str(path), lines)
    return data


def move_paths(cluster: dict[str, Any], place: Callable[[str], str]) -> None:
    """Put every path that a cluster's section holds as `place` says. `cluster` is modified in place."""
    if isinstance(cluster.get("ibnetdiscover"), str):
        cluster["ibnetdiscover"] = place(cluster["ibnetdiscover"])
    hosts = cluster.get("hosts")
    for group in hosts if isinstance(hosts, list) else [hosts]:
        machine = group.get("nccl_xml") if isinstance(group, dict) else None
        if isinstance(machine, dict) and isinstance(machine.get("file"), str):
            machine["file"] = place(machine["file"])


def load_spec(path: str | Path, stdin: TextIO | None = None) -> Spec:
    """Read a spec file, or `stdin` where the path is `-`: paths in it are then relative to the current folder.

    Raises ConfigError: file, line, key, what was got and expected.
    """
    data, lines = read_yaml_file(path, stdin)
    origin, file = Origin.reading(path, stdin), name_of(path, stdin)
    if not isinstance(data, dict):
        raise ConfigError("expected the keys of a spec: schema, name, cluster, workload", file=file, line=1)
    origin.add((), file, lines)
    return read_spec(data, origin)


def read_spec(data: Any, origin: Origin | None = None) -> Spec:
    """A spec from plain data. Raises ConfigError."""
    origin = origin or Origin(Path(), None)
    try:
        return Spec.model_validate(data, context={"origin": origin})
    except ValidationError as error:
        if isinstance(data, dict) and isinstance(data.get("cluster"), str):
            data = {**data, "cluster": _read_cluster(data["cluster"], origin)}
        found = config_errors(error, Spec, data=data)[0]
    except ConfigError as error:
        if error.file is not None:
            raise
        found = error
    file, line = origin.locate(undotted(found.key or ""))
    raise ConfigError(found.message, file=file, line=line, key=found.key)


def load_cluster(path: str | Path, stdin: TextIO | None = None) -> Spec:
    """A spec of nothing but a cluster, from a file (or `stdin`) that holds a spec or only a cluster's section."""
    data, lines = read_yaml_file(path, stdin)
    origin, file = Origin.reading(path, stdin), name_of(path, stdin)
    if isinstance(data, dict) and ("schema" in data or "cluster" in data):
        origin.add((), file, lines)
        return read_spec(data, origin)
    if not isinstance(data, dict):
        raise ConfigError("expected the keys of a cluster, such as hosts and network", file=file, line=1)
    origin.add(("cluster",), file, lines)
    name = "stdin" if origin.path is None else origin.path.stem
    return read_spec({"schema": 1, "name": name, "cluster": data}, origin)


def json_schema(sections: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON schema of a spec file, for editors. `sections` gives the schemas of opaque top keys."""
    schema = Spec.model_json_schema(by_alias=True, mode="validation")
    properties = schema["properties"]
    # a cluster may also be the path of a file that holds one
    cluster = properties["cluster"]
    properties["cluster"] = {"anyOf": [*cluster.get("oneOf", cluster.get("anyOf", [])), {"type": "string"}]}
    properties["calibration"]["anyOf"].append({"type": "string"})
    for key, section in (sections or {}).items():
        section = dict(section)
        schema["$defs"] |= section.pop("$defs", {})
        properties[key] = section
    return {"$schema": SCHEMA_ID, "title": "fabrictwin spec", **{k: v for k, v in schema.items() if k != "title"}}


__all__ = [
    "Compare",
    "Count",
    "Fault",
    "GpuFault",
    "LinkFault",
    "NoiseFault",
    "Origin",
    "Placement",
    "Run",
    "Spec",
    "SubnetManager",
    "SwitchFault",
    "json_schema",
    "load_cluster",
    "load_spec",
    "read_spec",
]

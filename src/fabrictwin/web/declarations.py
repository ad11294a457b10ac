"""Requests and answers of the HTTP interface: what is validated, and what its OpenAPI document is written from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+ -]{0,120}$"
KEY = r"^[A-Za-z0-9_.\[\]-]{1,200}$"

FileName = Annotated[str, Field(pattern=NAME, max_length=121)]
Key = Annotated[str, Field(pattern=KEY)]
UploadId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
JobId = Annotated[str, Field(pattern=r"^[0-9]{4,12}$")]
NodeName = Annotated[str, Field(min_length=1, max_length=200)]
Fidelity = Literal["analytic", "flow", "packet"]


class Declared(BaseModel):
    """A request or a part of one: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class SpecSource(Declared):
    """A spec: its text, or its data, with edits over it, beside the examples, the served folder, dropped files."""

    text: Annotated[str, Field(max_length=2**20)] = Field(default="", description="The spec as YAML.")
    data: dict[str, Any] | None = Field(default=None, description="The spec as data, in place of text.")
    edits: dict[Key, Any] = Field(
        default_factory=dict, description="Values by key, laid over the spec; null removes a key.", max_length=200
    )
    base: Literal["examples", "folder", "none"] = Field(
        default="examples", description="Which files the spec may name: of the examples, or of the served folder."
    )
    files: dict[FileName, UploadId] = Field(
        default_factory=dict, description="Uploaded files that the spec may name, by name.", max_length=50
    )


class PathRequest(SpecSource):
    """A path between two GPUs."""

    origin: NodeName = Field(alias="from", examples=["host-0/gpu0"])
    destination: NodeName = Field(alias="to", examples=["host-1/gpu3"])


class RunRequest(Declared):
    """Simulate a spec."""

    kind: Literal["run"] = "run"
    spec: SpecSource
    fidelity: Fidelity = "flow"
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(default=None, description="Over the spec's.")


class CompareRequest(Declared):
    """The job of a spec on several fabrics of the catalog."""

    kind: Literal["compare"]
    spec: SpecSource
    fabrics: Annotated[list[Annotated[str, Field(max_length=60)]], Field(min_length=1, max_length=12)]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=8)] = Field(
        default_factory=list, description="Of cuts that are played packet by packet; none skips them."
    )
    fidelity: Literal["analytic", "flow"] | None = None


class PlanRequest(Declared):
    """Search the fastest layout that fits."""

    kind: Literal["plan"]
    spec: SpecSource
    top: Annotated[int, Field(ge=1, le=50)] = 10
    fidelity: Literal["analytic", "flow"] = "flow"
    headroom: Annotated[float, Field(ge=0, le=0.9)] = 0.05


class DiffRequest(Declared):
    """Hold two finished runs against each other."""

    kind: Literal["diff"]
    before: JobId
    after: JobId


class DoctorRequest(Declared):
    """Find what is wrong with a cluster by what it printed."""

    kind: Literal["doctor"]
    files: Annotated[dict[FileName, UploadId], Field(min_length=1, max_length=50)]
    hardware: Annotated[str, Field(max_length=60)] = Field(default="", description="A host of the catalog.")
    hosts: Annotated[int, Field(ge=1, le=4096)] = 1
    fabric: Literal["infiniband", "ethernet"] = "infiniband"
    twin: bool = Field(default=True, description="Hold what was printed against a simulation.")


JobRequest = Annotated[
    RunRequest | CompareRequest | PlanRequest | DiffRequest | DoctorRequest, Field(discriminator="kind")
]


class Problem(BaseModel):
    """One thing that is wrong, and where."""

    message: str
    key: str | None = Field(default=None, description="The key of the spec, or of the request.")
    line: int | None = Field(default=None, description="Of the spec's text.")
    file: str | None = None


class Problems(BaseModel):
    """Why a request was refused."""

    errors: list[Problem]


class Bundled(BaseModel):
    """A spec that the server has."""

    base: Literal["examples", "folder"]
    name: str
    about: str = ""


class Info(BaseModel):
    """What this server is, and what it has."""

    version: str
    specs: list[Bundled]
    first: Bundled | None = Field(description="The spec that the server was started with.")
    fabrics: list[str]
    workers: int
    kept_jobs: int
    waiting_jobs: int
    most_file_bytes: int


class SpecText(BaseModel):
    """A spec that the server has."""

    base: Literal["examples", "folder"]
    name: str
    text: str


class Uploaded(BaseModel):
    """A file that was kept."""

    id: str
    name: str
    size: int
    kind: Literal["spec", "ibnetdiscover", "nccl-topology", "model", "log"]


class SpecAnswer(BaseModel):
    """A spec as it was read, all that is wrong with it, and where nothing is, its step in closed form."""

    text: str
    data: Any
    errors: list[Problem]
    summary: dict[str, Any] | None = Field(description="As summary.json of a run at the fidelity analytic.")
    serving: bool = Field(description="The workload is a server, which has no closed form.")
    adapters: list[str] = Field(description="Names of the adapters of the cluster's first host.")


class Hop(BaseModel):
    """A directed link of a path."""

    link: str
    kind: str
    rate_gbps: float
    latency_ps: int
    share: float = Field(description="Of the bytes that take this link.")


class FoundPath(BaseModel):
    """Every hop between two GPUs, inside their hosts too."""

    origin: str = Field(alias="from")
    destination: str = Field(alias="to")
    latency_ps: int
    hops: list[Hop]


class Named(BaseModel):
    """Names: all of them, or a stem that is followed by numbers from 0."""

    count: int
    names: list[str] | None = None
    stem: str | None = None


class Hosts(Named):
    """Hosts: the rack of each, and its GPUs."""

    rack: list[int]
    gpus: list[int]


class Racks(BaseModel):
    """Racks: the switches of each."""

    switches: list[list[int]]


class Switches(Named):
    """Switches: their tier (1 at the leaves, -1 unknown) and pod (-1 none)."""

    tier: list[int]
    pod: list[int]


class Adapters(BaseModel):
    """Adapters: host and switch of each; utilisation (0 to 1) where a run is shown."""

    host: list[int]
    switch: list[int]
    rate_gbps: list[float]
    use: list[float] | None = None


class Trunks(BaseModel):
    """Pairs of switches that cables join."""

    a: list[int]
    b: list[int]
    cables: list[int]
    use: list[float] | None = None


class FabricMap(BaseModel):
    """A fabric as a map draws it."""

    technology: str
    gpus: int
    hosts: Hosts
    racks: Racks
    switches: Switches
    adapters: Adapters
    trunks: Trunks


class JobState(BaseModel):
    """A job, and how far it is."""

    id: str
    kind: Literal["run", "compare", "plan", "diff", "doctor"]
    title: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    stage: str
    fraction: float | None
    elapsed_s: float | None
    left_s: float | None
    error: Problem | None


class JobList(BaseModel):
    """Jobs in the order that they came."""

    jobs: list[JobState]


class TableField(BaseModel):
    """A column."""

    name: str
    unit: str | None


class Table(BaseModel):
    """Columns of one length, in order."""

    fields: list[TableField]
    columns: dict[str, list[Any]]


class MatrixData(BaseModel):
    """Utilisation (0 to 1) by row and column, and how many directed links a cell stands for."""

    title: str
    rows: list[str]
    columns: list[str]
    greatest: list[list[float]]
    mean: list[list[float]]
    links: list[list[int]]


class CellLink(BaseModel):
    """A directed link of a cell."""

    link: str
    kind: str
    rate_gbps: float
    tx_bytes: int
    utilisation: float


class CatalogRow(BaseModel):
    """An entry of the catalog."""

    kind: str
    name: str
    title: str


class CatalogFigure(BaseModel):
    """A figure of an entry, and where it is from."""

    figure: str
    value: str
    estimate: bool
    source: str
    url: str | None = None


class CatalogEntry(CatalogRow):
    """An entry of the catalog with all its figures."""

    note: str
    figures: list[CatalogFigure]
    notes: list[str]

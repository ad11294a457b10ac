"""What can be asked of the server, and how it is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.responses import FileResponse, Response, StreamingResponse

from fabrictwin.web import declarations as d
from fabrictwin.web import result_tables, run_answers, spec_answers
from fabrictwin.web.interface import JSON, Asked, Gives, NotReadyError, Operation, Takes, UnknownError
from fabrictwin.web.jobs import OVER, Job
from fabrictwin.web.service import Service

QUICK_S = 60.0  # that a question may take
SHOWN_ANEW_S = 0.5  # of a job that goes on
FILES = {
    "report.html": "text/html; charset=utf-8",
    "compare.html": "text/html; charset=utf-8",
    "diff.html": "text/html; charset=utf-8",
    "doctor.html": "text/html; charset=utf-8",
    "timeline.pftrace": "application/octet-stream",
    "config.resolved.yaml": "text/plain; charset=utf-8",
    "summary.json": JSON,
}
# of a page that was written for this run: it may run its own scripts, and neither ask nor be this site
SANDBOX = "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
VIEWS = {"answer": "answer.json", "map": "map.json", "timeline": "timeline.json", "matrices": "matrices.json"}


class SpecName(d.Declared):
    """A spec that the server has."""

    base: Literal["examples", "folder"]
    name: d.FileName


class UploadName(d.Declared):
    """The name of a file."""

    name: d.FileName


class JobName(d.Declared):
    """A job."""

    job: d.JobId


class TableName(JobName):
    """A table of a job."""

    table: Literal["links", "flows", "breakdown"]
    format: result_tables.Format = Field(default="json", description="Parquet has units in its fields' metadata.")


class FileOf(JobName):
    """A file of a job."""

    file: Literal[
        "report.html",
        "compare.html",
        "diff.html",
        "doctor.html",
        "timeline.pftrace",
        "config.resolved.yaml",
        "summary.json",
    ]


class CellName(JobName):
    """A cell of a matrix."""

    matrix: Annotated[int, Field(ge=0, lt=100)]
    row: Annotated[int, Field(ge=0, lt=1000)]
    column: Annotated[int, Field(ge=0, lt=1000)]


class EntryName(d.Declared):
    """An entry of the catalog."""

    kind: Annotated[str, Field(max_length=60)]
    name: Annotated[str, Field(max_length=120)]


_Handler = Callable[["_Answers", Asked], Awaitable[Any]]
_DECLARED: dict[Any, tuple[str, Takes, Gives]] = {}  # by handler
WORK = (413, 422, 503, 504)
FINISHED = (404, 409, 422)


def _answers(takes: Takes, gives: Gives) -> Callable[[_Handler], _Handler]:
    """Declare the operation that a handler answers; its name and its docstring are the operation's."""

    def declare(handler: _Handler) -> _Handler:
        _DECLARED[handler] = str(handler.__doc__), takes, gives
        return handler

    return declare


def _view(name: str, summary: str, answer: Any = None) -> _Handler:
    """Make the handler of a view that a job's folder has as a file."""

    async def handler(on: _Answers, asked: Asked) -> Any:
        return on._file(on._finished(asked.given.job), VIEWS[name], JSON)

    handler.__doc__ = summary
    takes = Takes("GET", f"/api/jobs/{{job}}/{name}", JobName)
    return _answers(takes, Gives(answer, media=[JSON], errors=FINISHED))(handler)


def operations(service: Service | None) -> list[Operation]:
    """All operations, bound to a service; to None where they are described and not asked."""
    bound, found = _Answers(service), []
    for name, handler in vars(_Answers).items():
        if callable(handler) and handler in _DECLARED:
            first, *more = name.split("_")
            summary, takes, gives = _DECLARED[handler]
            camel = first + "".join(map(str.title, more))
            found.append(Operation(camel, summary, partial(handler, bound), takes, gives))
    return found


class _Answers:
    """Handlers of all operations, in the order in which they are described."""

    def __init__(self, service: Service | None) -> None:
        self._service = service

    @property
    def service(self) -> Service:
        """Return what they are bound to."""
        assert self._service is not None
        return self._service

    async def _quick(self, work: Any, *given: Any) -> Any:
        asked = partial(self.service.quick.ask, work, *given, within_s=QUICK_S)
        return await asyncio.get_running_loop().run_in_executor(self.service.threads, asked)

    @_answers(Takes("GET", "/api/info"), Gives(d.Info, errors=()))
    async def info(self, asked: Asked) -> Any:
        """Version, specs, fabrics and limits of this server."""
        return self.service.info().model_dump()

    @_answers(Takes("GET", "/api/schema"), Gives(media=[JSON], errors=(503,)))
    async def schema(self, asked: Asked) -> Any:
        """The JSON schema of a spec."""
        if self.service.schema is None:
            self.service.schema = await self._quick(spec_answers.schema)
        return self.service.schema

    @_answers(Takes("GET", "/api/specs/{base}/{name}", SpecName), Gives(d.SpecText, errors=(404, 422)))
    async def spec(self, asked: Asked) -> Any:
        """The text of a spec that the server has."""
        path = self.service.bundled(asked.given.base, asked.given.name)
        if path is None:
            raise UnknownError(f"there is no spec {asked.given.name!r} there")
        text = await asyncio.to_thread(path.read_text, encoding="utf-8", errors="replace")
        return {"base": asked.given.base, "name": asked.given.name, "text": text}

    @_answers(Takes("PUT", "/api/files/{name}", UploadName, body=bytes), Gives(d.Uploaded, errors=(413, 422)))
    async def upload(self, asked: Asked) -> Any:
        """Keep a file, for specs to name and the doctor to read."""
        kept = await asyncio.to_thread(self.service.uploads.add, asked.given.name, asked.body)
        return {"id": kept.id, "name": kept.name, "size": kept.size, "kind": kept.kind}

    @_answers(Takes("POST", "/api/answer", body=d.SpecSource), Gives(d.SpecAnswer, errors=WORK))
    async def closed_form(self, asked: Asked) -> Any:
        """Check a spec and answer it in closed form."""
        return await self._quick(spec_answers.closed_form, self.service.source(asked.body))

    @_answers(Takes("POST", "/api/map", body=d.SpecSource), Gives(d.FabricMap, errors=WORK))
    async def fabric_map(self, asked: Asked) -> Any:
        """Hosts, switches and cables of a spec's cluster."""
        return await self._quick(spec_answers.map_of, self.service.source(asked.body))

    @_answers(Takes("POST", "/api/path", body=d.PathRequest), Gives(d.FoundPath, errors=WORK))
    async def path(self, asked: Asked) -> Any:
        """Every hop between two GPUs, inside their hosts too."""
        body = asked.body
        return await self._quick(spec_answers.path_of, self.service.source(body), body.origin, body.destination)

    @_answers(Takes("GET", "/api/jobs"), Gives(d.JobList, errors=()))
    async def jobs(self, asked: Asked) -> Any:
        """Jobs that are known."""
        return {"jobs": [job.data() for job in self.service.jobs.all()]}

    @_answers(
        Takes("POST", "/api/jobs", body=d.JobRequest),
        Gives(d.JobState, status=202, errors=(404, 409, 413, 422, 503)),
    )
    async def begin(self, asked: Asked) -> Any:
        """Queue a run, a comparison, a search, a difference or a diagnosis."""
        return (await asyncio.to_thread(self._begun, asked.body)).data()

    def _begun(self, body: Any) -> Job:
        service = self.service
        if isinstance(body, d.DiffRequest):
            before, after = (self._finished(name, "run") for name in (body.before, body.after))
            given: tuple[Any, ...] = (
                str(before.folder),
                str(after.folder),
                (before.request.title, after.request.title),
            )
            return service.jobs.add(
                "diff", f"{before.request.title} and {after.request.title}", run_answers.diff, given
            )
        if isinstance(body, d.DoctorRequest):
            files = {name: str(service.uploads.path(upload)) for name, upload in body.files.items()}
            given = (files, body.hardware, body.hosts, body.fabric, body.twin)
            return service.jobs.add("doctor", ", ".join(files)[:80], run_answers.doctor, given)
        source, title = service.source(body.spec), service.title(body.spec)
        if isinstance(body, d.RunRequest):
            given = (source, body.fidelity, body.seed)
            return service.jobs.add("run", f"{title}, {body.fidelity}", run_answers.run, given)
        if isinstance(body, d.CompareRequest):
            given = (source, body.fabrics, body.seeds, body.fidelity)
            return service.jobs.add("compare", title, run_answers.compare, given)
        given = (source, body.top, body.fidelity, body.headroom)
        return service.jobs.add("plan", title, run_answers.plan, given)

    def _job(self, name: str) -> Job:
        job = self.service.jobs.find(name)
        if job is None:
            raise UnknownError(f"there is no job {name!r}, or it is not kept any more")
        return job

    def _finished(self, name: str, kind: str = "") -> Job:
        job = self._job(name)
        if job.state != "done":
            raise NotReadyError(f"job {name} is {job.state}")
        if kind and job.request.kind != kind:
            raise NotReadyError(f"job {name} is no {kind}")
        return job

    def _file(self, job: Job, name: str, media: str, **headers: str) -> Response:
        path = job.folder / name
        if not path.is_file():
            raise UnknownError(f"job {job.id} has no {name}")
        return FileResponse(path, media_type=media, headers=headers)

    @_answers(Takes("GET", "/api/jobs/{job}", JobName), Gives(d.JobState, errors=(404, 422)))
    async def job(self, asked: Asked) -> Any:
        """Progress of a job."""
        return self._job(asked.given.job).data()

    @_answers(
        Takes("GET", "/api/jobs/{job}/events", JobName), Gives(media=["text/event-stream"], errors=(404, 422))
    )
    async def events(self, asked: Asked) -> Any:
        """Progress of a job, as server-sent events of JobState until it is over."""
        job = self._job(asked.given.job)

        async def states() -> AsyncIterator[str]:
            while True:
                yield f"data: {json.dumps(job.data())}\n\n"
                if job.state in OVER:
                    return
                await self.service.wait_for_change(job, SHOWN_ANEW_S)

        return StreamingResponse(states(), media_type="text/event-stream")

    @_answers(Takes("POST", "/api/jobs/{job}/cancel", JobName), Gives(d.JobState, errors=(404, 422)))
    async def cancel(self, asked: Asked) -> Any:
        """End a job that is not over."""
        job = self._job(asked.given.job)
        await asyncio.to_thread(self.service.jobs.cancel, job)
        return job.data()

    @_answers(Takes("DELETE", "/api/jobs/{job}", JobName), Gives(status=204, errors=(404, 422)))
    async def forget(self, asked: Asked) -> Any:
        """End a job and forget it."""
        await asyncio.to_thread(self.service.jobs.forget, self._job(asked.given.job))
        return Response(status_code=204)

    answer = _view("answer", "The answer: a run's summary.json, or what its kind of job says.")
    map = _view("map", "The fabric with its utilisation.", d.FabricMap)
    timeline = _view("timeline", "What every stage does over the step, and the slices of one.")
    matrices = _view("matrices", "Utilisation of the fabric as matrices.", list[d.MatrixData])

    @_answers(
        Takes("GET", "/api/jobs/{job}/matrices/{matrix}/{row}/{column}", CellName),
        Gives(list[d.CellLink], errors=(*FINISHED, 503, 504)),
    )
    async def cell(self, asked: Asked) -> Any:
        """The links of a matrix's cell, busiest first."""
        job, given = self._finished(asked.given.job), asked.given
        return await self._quick(result_tables.cell_links, str(job.folder), given.matrix, given.row, given.column)

    @_answers(
        Takes("GET", "/api/jobs/{job}/tables/{table}", TableName),
        Gives(d.Table, media=[JSON, "text/csv", "application/vnd.apache.parquet"], errors=(*FINISHED, 503, 504)),
    )
    async def table(self, asked: Asked) -> Any:
        """A table of a run."""
        job, form = self._finished(asked.given.job), asked.given.format
        content = await self._quick(result_tables.table, str(job.folder), asked.given.table, form)
        media = {"json": JSON, "csv": "text/csv", "parquet": "application/vnd.apache.parquet"}[form]
        name = f"{asked.given.table}.{form}"
        headers = {} if form == "json" else {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=media, headers=headers)

    @_answers(
        Takes("GET", "/api/jobs/{job}/files/{file}", FileOf),
        Gives(media=sorted(set(FILES.values())), errors=FINISHED),
    )
    async def file(self, asked: Asked) -> Any:
        """A file that the job wrote."""
        name, media = asked.given.file, FILES[asked.given.file]
        headers = {"content-security-policy": SANDBOX} if media.startswith("text/html") else {}
        return self._file(self._finished(asked.given.job), name, media, **headers)

    @_answers(Takes("GET", "/api/catalog"), Gives(list[d.CatalogRow], errors=(503,)))
    async def catalog(self, asked: Asked) -> Any:
        """Entries of the catalog."""
        if self.service.catalog is None:
            self.service.catalog = await self._quick(spec_answers.catalog_list)
        return self.service.catalog

    @_answers(Takes("GET", "/api/catalog/{kind}/{name}", EntryName), Gives(d.CatalogEntry, errors=(422, 503)))
    async def catalog_entry(self, asked: Asked) -> Any:
        """An entry with every figure and its source."""
        return await self._quick(spec_answers.catalog_entry, asked.given.name, asked.given.kind)

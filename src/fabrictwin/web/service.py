"""A server's state: its specs, dropped files, jobs, processes that answer at once; all in one private folder."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, FabrictwinError
from fabrictwin.base.process.interrupt import begin, finish
from fabrictwin.base.records import record
from fabrictwin.base.version import __version__
from fabrictwin.runs.examples import example_names, examples_folder, what_it_shows
from fabrictwin.web import declarations as d
from fabrictwin.web import spec_answers
from fabrictwin.web.jobs import Job, Jobs, Limits, Quick
from fabrictwin.web.sources import Source
from fabrictwin.web.uploads import MOST_FILE_BYTES, Uploads, checked_name

FIRST = "laptop"
FABRICS = ("infiniband-ndr", "roce-400g", "roce-400g-lossy", "spectrum-x-400g", "tcp-100g")
WARM_S = 300.0
MOST_SPECS = 200


@record
class Setting:
    """What a server is started with."""

    spec: Path | None = None  # the spec, or the folder of specs, that it shows
    workers: int = 1  # processes for jobs
    quick_workers: int = 1  # processes for what is answered at once
    limits: Limits = field(default_factory=Limits)


class Service:
    """All that lives as long as a server. Methods may be called from any thread."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        given = None if setting.spec is None else setting.spec.resolve()  # processes have folders of their own
        self.folder = given.parent if given is not None and given.is_file() else given
        self.root = Path(tempfile.mkdtemp(prefix="fabrictwin-ui-"))
        begin(self.root)  # removed too where an interrupt ends the process before its connections end
        for name in ("files", "jobs", "quick"):
            (self.root / name).mkdir(mode=0o700)
        self.uploads = Uploads(self.root / "files")
        self.jobs = Jobs(self.root / "jobs", setting.workers, setting.limits, self._changed)
        self.quick = Quick(setting.quick_workers, setting.limits.quick_waiting, self.root / "quick")
        # one more than may wait, so that it is the limit that refuses
        self.threads = ThreadPoolExecutor(setting.limits.quick_waiting + 1, "quick")
        self.schema: Any = None
        self.catalog: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()

    def close(self) -> None:
        """End all processes and remove the folder."""
        self.jobs.close()
        self.quick.close()
        self.threads.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self.root, ignore_errors=True)
        finish(self.root)

    def warm(self) -> None:
        """Have the processes import and compile what first answers need; an answer may come first."""
        path = self.bundled("examples", FIRST)
        if path is None:
            return
        source = Source(text=path.read_text(encoding="utf-8"), base=str(examples_folder()))
        with contextlib.suppress(FabrictwinError):
            self.quick.ask(spec_answers.warm, source, within_s=WARM_S)

    def attend(self) -> None:
        """Remember the running loop, which `wait_for_change` waits in."""
        self._loop = asyncio.get_running_loop()

    def _changed(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it closes at this moment
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def wait_for_change(self, job: Job, most_s: float) -> None:
        """Return when a job has changed, at the latest after `most_s`."""
        seen, event = job.version, asyncio.Event()
        self._waiting.add(event)
        try:
            if job.version == seen:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), most_s)
        finally:
            self._waiting.discard(event)

    def info(self) -> d.Info:
        """A description of what this server has."""
        specs = [d.Bundled(base="folder", name=name) for name in self._of_folder()]
        specs += [d.Bundled(base="examples", name=name, about=what_it_shows(name)) for name in example_names()]
        first = next((one for one in specs if one.base == "examples" and one.name == FIRST), None)
        if self.setting.spec is not None and self.setting.spec.is_file():
            first = d.Bundled(base="folder", name=self.setting.spec.name)
        elif specs and specs[0].base == "folder":
            first = specs[0]
        return d.Info(
            version=__version__,
            specs=specs,
            first=first,
            fabrics=list(FABRICS),
            workers=self.setting.workers,
            kept_jobs=self.setting.limits.kept,
            waiting_jobs=self.setting.limits.waiting,
            most_file_bytes=MOST_FILE_BYTES,
        )

    def _of_folder(self) -> list[str]:
        """Names of the specs in the served folder."""
        if self.folder is None:
            return []
        found = sorted(
            path for path in self.folder.iterdir() if path.suffix in (".yaml", ".yml") and path.is_file()
        )
        return [path.name for path in found[:MOST_SPECS] if _is_spec(path)]

    def bundled(self, base: str, name: str) -> Path | None:
        """The file of a spec that the server has; None for anything else."""
        if base == "examples":
            return examples_folder() / f"{name}.yaml" if name in example_names() else None
        return self.folder / name if self.folder is not None and name in self._of_folder() else None

    def source(self, asked: d.SpecSource) -> Source:
        """A spec of a request with its files in place. Raises ConfigError."""
        if asked.data is None and not asked.text.strip():
            raise ConfigError("got neither text nor data, expected a spec", key="text")
        base = {"examples": str(examples_folder()), "folder": str(self.folder or ""), "none": ""}[asked.base]
        files = {checked_name(name): str(self.uploads.path(one)) for name, one in asked.files.items()}
        return Source(asked.text, asked.data, asked.edits, base, files)

    def title(self, asked: d.SpecSource) -> str:
        """The name of a spec, for lists of jobs."""
        given = asked.edits.get("name") or (asked.data or {}).get("name")
        found = re.search(r"^name:\s*(\S[^#\n]*)", asked.text, re.MULTILINE)
        return str(given or (found[1].strip() if found else "unnamed"))[:80]


def _is_spec(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        return re.search(r"^(?:schema|cluster)\s*:", file.read(2**16), re.MULTILINE) is not None
    return False

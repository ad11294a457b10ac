"""A server of the page in this process, asked as a browser or a program would ask it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fabrictwin.runs.examples import examples_folder

PORT = 8765
HERE = f"http://127.0.0.1:{PORT}"


@contextmanager
def served(token: str = "", names: tuple[str, ...] = (), **setting: Any) -> Iterator[Any]:
    """Yield a client of a server; `setting` is as `Setting` takes it."""
    from starlette.testclient import TestClient

    from fabrictwin.web.guard import Access
    from fabrictwin.web.server import make_app
    from fabrictwin.web.service import Service, Setting

    service = Service(Setting(**setting))
    service.warm = lambda: None  # type: ignore[method-assign]  # what is asked first warms what it needs
    app = make_app(service, Access(PORT, names, token))
    with TestClient(app, base_url=HERE) as client:
        client.service = service
        yield client


def example(name: str = "laptop") -> str:
    """The text of an example."""
    return (Path(examples_folder()) / f"{name}.yaml").read_text(encoding="utf-8")


def finished(client: Any, request: dict[str, Any], within_s: float = 300.0) -> dict[str, Any]:
    """The last state of a job."""
    answer = client.post("/api/jobs", json=request)
    assert answer.status_code == 202, answer.text
    job, end = answer.json(), time.monotonic() + within_s
    while job["state"] not in ("done", "failed", "cancelled"):
        assert time.monotonic() < end, job
        time.sleep(0.05)
        job = client.get(f"/api/jobs/{job['id']}").json()
    return dict(job)

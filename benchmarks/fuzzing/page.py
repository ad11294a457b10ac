"""Targets of `fuzz.py`: the page's HTTP server, by its application and by its socket.

An input is a request as people read it: `METHOD PATH`, headers, an empty line, a body. `page-requests` hands it to
the application itself, with what its processes would do done here; `page-socket` sends it to a server in a process
of its own, byte for byte where the first word is `RAW`, and keeps connections half open meanwhile.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fuzzing.target import FRESH, ROOT, Target, files, folder, job

HERE = b"127.0.0.1:8765"
ANSWER_S = 5.0
HALF_OPEN = 40  # connections whose request never ends, at a time
LOOKS = 25  # inputs between two looks at whether it answers, and at its memory
MOST_HOSTS = 64
_PR_SET_PDEATHSIG = 1

_SPEC = job("dgx-a100", "qm8700")
_LOG = b"""host-0:4711:4711 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
host-0:4711:4720 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
"""


def _request(method: str, path: str, body: bytes = b"", kind: str = "application/json", *more: str) -> bytes:
    lines = [f"{method} {path}", f"host: {HERE.decode()}"]
    if body:
        lines += [f"content-type: {kind}", f"content-length: {len(body)}"]
    return "\n".join([*lines, *more]).encode() + b"\n\n" + body


def _uploads() -> dict[str, bytes]:
    """Files that are kept before the first input, by name."""
    discovered = b'Switch\t1 "S-51"\t\t# "leaf-1" base port 0 lid 1 lmc 0\n[1]\t"H-a1"[1](a1) \t\t# "box-1 mlx5_0" lid 2 4xHDR\n'
    xml = b'<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel"><pci busid="0000:1b:00.0" class="0x030200"/></cpu></system>'
    return {
        "model.json": files("examples/models/llama-3-8b.json")[0],
        "net.txt": discovered,
        "system.xml": xml,
        "nccl.log": _LOG,
        "broken.json": b'{"hidden_size": 1e400, "num_hidden_layers": "x"',
        "broken.yaml": b"schema: 1\ncluster: &a [*a]\n",
    }


def _id(name: str, content: bytes) -> str:
    import hashlib

    return hashlib.sha256(name.encode() + b"\0" + content).hexdigest()[:32]


def _samples() -> list[bytes]:
    kept = {name: _id(name, content) for name, content in _uploads().items()}
    text = {"text": _SPEC, "base": "examples", "edits": {"cluster.hosts.count": 4, "run.seed": 3, "faults": None}}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/api/answer", text),
        ("/api/answer", {"text": _SPEC, "files": kept, "edits": {"workload.training.model": "model.json"}}),
        ("/api/answer", {"data": {"schema": 1, "cluster": {"hosts": [{"type": "dgx-h100", "count": 2}]}}}),
        ("/api/map", text),
        ("/api/map", {"text": "schema: 1\ncluster: {file: net.txt}\n", "files": kept, "base": "none"}),
        ("/api/path", {**text, "from": "host-0/gpu0", "to": "host-1/gpu3"}),
        ("/api/jobs", {"kind": "run", "spec": text, "fidelity": "analytic", "seed": 5}),
        ("/api/jobs", {"kind": "run", "spec": text, "fidelity": "flow"}),
        ("/api/jobs", {"kind": "doctor", "files": kept, "hardware": "dgx-h100", "hosts": 2, "twin": False}),
        ("/api/jobs", {"kind": "diff", "before": "0001", "after": "0002"}),
        ("/api/jobs", {"kind": "compare", "spec": text, "fabrics": ["infiniband-ndr", "roce-400g"], "seeds": [1]}),
        ("/api/jobs", {"kind": "plan", "spec": text, "top": 3, "fidelity": "flow", "headroom": 0.1}),
    ]
    samples = [_request("POST", path, json.dumps(body).encode()) for path, body in bodies]
    octets = "application/octet-stream"
    samples += [
        _request("PUT", f"/api/files/{name}", content[:4000], octets) for name, content in _uploads().items()
    ]
    paths = [
        "/", "/?token=abc", "/app.js", "/openapi.json", "/api/info", "/api/schema", "/api/jobs", "/api/jobs/0001",
        "/api/jobs/0001/events", "/api/jobs/0001/answer", "/api/jobs/0001/map", "/api/jobs/0001/timeline",
        "/api/jobs/0001/matrices", "/api/jobs/0001/matrices/0/1/1", "/api/jobs/0001/tables/links?format=csv",
        "/api/jobs/0001/tables/breakdown", "/api/jobs/0001/tables/flows?format=parquet",
        "/api/jobs/0001/files/report.html", "/api/catalog", "/api/catalog/host/dgx-h100", "/api/specs/examples/laptop",
        "/api/specs/folder/laptop.yaml", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/api/files/..%2fx",
    ]  # fmt: skip
    samples += [_request("GET", path) for path in paths]
    samples.append(
        _request("GET", "/api/info", b"", "", "origin: http://evil.example", "cookie: fabrictwin=\x80x; =")
    )
    samples.append(_request("GET", "/", b"", "", "sec-fetch-site: cross-site", "authorization: Bearer x"))
    samples += [_request(method, "/api/jobs/0001/cancel") for method in ("POST", "DELETE", "OPTIONS", "HEAD")]
    return samples


def _quick(work: Any, given: tuple[Any, ...]) -> bool:
    """Return True where a piece of work asks for no more than a second or so: nobody promised to be quick."""
    from fabrictwin.base.errors import FabrictwinError
    from fabrictwin.web import run_answers
    from fabrictwin.web.sources import Source, spec_of
    from fabrictwin.web.spec_answers import in_folder_of

    if work in (run_answers.compare, run_answers.plan):
        return False
    source = next((one for one in given if isinstance(one, Source)), None)
    if source is None:
        return True
    try:
        with in_folder_of(source) as beside:
            spec = spec_of(source, beside)
    except FabrictwinError:
        return True
    if work is run_answers.run and ("serving" in spec.workload or "packet" in given):
        return False
    hosts = sum(getattr(group, "count", 1) for group in getattr(spec.cluster, "hosts", None) or ())
    job = spec.workload.get("training") or {}
    layers = getattr(job.get("model"), "get", lambda *_: 0)("num_hidden_layers", 0)
    sizes = [hosts, layers, job.get("global_batch", 0), len(spec.to_dict().get("faults") or ())]
    return all(
        not isinstance(size, int) or size <= limit
        for size, limit in zip(sizes, (MOST_HOSTS, 100, 512, 64), strict=True)
    )


class _Application:
    """The application with its work done in this process, at once."""

    def __init__(self) -> None:
        self.inputs = 0
        self.service: Any = None

    def ready(self) -> None:
        """Begin anew after FRESH inputs: files that are kept, and jobs, are many by then."""
        from fabrictwin.web.guard import Access
        from fabrictwin.web.server import make_app
        from fabrictwin.web.service import Service, Setting

        if self.inputs % FRESH == 0:
            self.close()
            self.service = Service(Setting(spec=ROOT / "examples/laptop.yaml", workers=0))
            self.service.quick.ask = self._ask
            add = self.service.jobs.add
            self.service.jobs.add = lambda *given: self._do(add(*given))
            for name, content in _uploads().items():
                self.service.uploads.add(name, content)
            self.app = make_app(self.service, Access(8765))
        self.inputs += 1

    def _ask(self, work: Any, *given: Any, within_s: float) -> Any:
        from fabrictwin.base.progress import silent
        from fabrictwin.runs.worker_process import WorkerEndedError

        if not _quick(work, given):
            raise WorkerEndedError("too long")
        return work(silent, *given)

    def _do(self, job: Any) -> Any:
        from fabrictwin.base.errors import FabrictwinError
        from fabrictwin.base.progress import silent

        job.state = "failed"
        if _quick(job.work, job.given[1:]):
            with suppress(FabrictwinError):
                job.work(silent, *job.given)
                job.state = "done"
        self.service.jobs._tidy()
        return job

    def close(self) -> None:
        if self.service is not None:
            self.service.close()

    def ask(self, data: bytes) -> int:
        """Return the status of an answer."""
        head, _, body = data.partition(b"\n\n")
        first, *lines = head.split(b"\n")
        method, _, target = first.partition(b" ")
        path, _, query = target.partition(b"?")
        headers = [
            (name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)
        ]
        # as the server does it: a changed body has the length that it has
        headers = [(name, b"%d" % len(body) if name == b"content-length" else value) for name, value in headers]
        from urllib.parse import unquote

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
            "method": method.decode("latin-1") or "GET", "path": unquote(path.decode("latin-1")), "raw_path": path,
            "query_string": query, "root_path": "", "headers": headers, "client": ("127.0.0.1", 9),
            "server": ("127.0.0.1", 8765),
        }  # fmt: skip
        said: list[Any] = []
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message)

        async def asked() -> None:
            self.service.attend()
            await self.app(scope, receive, send)

        asyncio.run(asked())
        status: int = said[0]["status"]
        content = b"".join(one.get("body", b"") for one in said[1:])
        if b"root:x:0:0" in content:
            raise RuntimeError(f"{path!r} led out of the folder")
        if status >= 500 and status not in (503, 504):
            raise RuntimeError(f"status {status}: {content[:200]!r}")
        return status


def _page_requests() -> Target:
    application = _Application()

    def read(data: bytes) -> None:
        application.ready()
        application.ask(data)

    return Target(_samples(), read, close=application.close)


class _Server:
    """`fabrictwin ui` in a process of its own, and connections to it whose requests never end."""

    def __init__(self) -> None:
        self.inputs = 0
        self.process: Any = None
        self.half: list[socket.socket] = []
        self.read = 0

    def ready(self) -> None:
        """Start it, or look how it is."""
        if self.process is None:
            self._start()
        elif self.inputs % LOOKS == 0:
            self.look()
        self.inputs += 1

    def _start(self) -> None:
        self.log = folder() / "ui.err"
        prctl = ctypes.CDLL(None).prctl
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fabrictwin", "ui", str(ROOT / "examples"), "--port", "0", "--workers", "1"],
                stdout=subprocess.PIPE, stderr=errors, env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder())},
                preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )  # fmt: skip
        line = self.process.stdout.readline().decode()
        self.port = int(line.split("127.0.0.1:")[1].split("/")[0])
        for name, content in _uploads().items():
            self.ask(_request("PUT", f"/api/files/{name}", content, "application/octet-stream"))
        end = time.monotonic() + 120
        while self.ask(_samples()[0], 120) >= 500:  # its process imports and compiles first
            if time.monotonic() > end:
                raise RuntimeError("the server does not get ready")
        self.before = self._memory()

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), ANSWER_S)

    def ask(self, data: bytes, within_s: float = ANSWER_S) -> int:
        """Send a request with the right framing, and return the status of its answer."""
        head, _, body = data.partition(b"\n\n")
        first, *lines = head.split(b"\n")
        lines = [
            b"content-length: %d" % len(body) if line[:15].lower() == b"content-length:" else line
            for line in lines
        ]
        text = b"\r\n".join([first + b" HTTP/1.1", *lines, b"connection: close"]) + b"\r\n\r\n" + body
        return self.exchange(text, within_s)

    def exchange(self, text: bytes, within_s: float = ANSWER_S) -> int:
        """Send bytes as they are; 0 where no answer came, which is proper for what is no whole request."""
        text = text.replace(HERE, b"127.0.0.1:%d" % self.port)
        with self.connected() as connection:
            connection.settimeout(within_s)
            answer = b""
            with suppress(ConnectionError, TimeoutError):
                connection.sendall(text)
                while len(answer) < 12 and (got := connection.recv(1 << 16)):
                    answer += got
        if not answer:
            return 0
        if not answer.startswith(b"HTTP/1.1 ") or not answer[9:12].isdigit():
            raise RuntimeError(f"no HTTP: {answer[:60]!r}")
        status = int(answer[9:12])
        if status >= 500 and status not in (503, 504):
            raise RuntimeError(f"status {status}")
        return status

    def half_open(self, text: bytes) -> None:
        """Send bytes, and leave the connection as it is for a while."""
        connection = self.connected()
        connection.setblocking(False)
        with suppress(OSError):
            connection.send(text.replace(HERE, b"127.0.0.1:%d" % self.port))
        self.half.append(connection)
        if len(self.half) > HALF_OPEN:
            self.half.pop(0).close()

    def look(self) -> None:
        """Raise where it does not answer others, printed a traceback, or takes too much memory."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}")
        begun = time.monotonic()
        status = self.ask(_request("GET", "/api/info"))
        if status != 200:
            raise RuntimeError(f"/api/info answers {status} after {time.monotonic() - begun:.1f} s")
        said = self.log.read_bytes()
        new, self.read = said[self.read :], len(said)
        if b"Traceback" in new:
            raise RuntimeError(new.decode("utf-8", "replace")[-3000:])
        if self._memory() > self.before + (1 << 30):
            raise RuntimeError(f"the server holds {self._memory() >> 20} MiB, after {self.before >> 20}")

    def _memory(self) -> int:
        """Resident memory of the server and its processes."""
        found = 0
        for one in [self.process.pid, *_children(self.process.pid)]:
            with suppress(OSError, IndexError):
                found += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return found

    def close(self) -> None:
        """Interrupt it, which ends it within a second or so, and leaves nothing behind."""
        for one in self.half:
            one.close()
        if self.process is None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError("the server does not end within 10 s of an interrupt") from None
        finally:
            self.process.stdout.close()


def _children(process: int) -> list[int]:
    with suppress(OSError):
        return [
            int(one)
            for task in Path(f"/proc/{process}/task").iterdir()
            for one in (task / "children").read_text().split()
        ]
    return []


def _page_socket() -> Target:
    server = _Server()

    def read(data: bytes) -> None:
        server.ready()
        if data[:4] == b"HALF":
            server.half_open(data[5:])
        elif data[:3] == b"RAW":
            connection = server.connected()
            with connection:
                connection.settimeout(ANSWER_S)
                with suppress(ConnectionError, TimeoutError):
                    connection.sendall(data[4:].replace(HERE, b"127.0.0.1:%d" % server.port))
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass
        elif b"compare" not in data and b'"plan"' not in data and _harmless(data):
            with suppress(ValueError):
                server.ask(data)

    samples = _samples()
    whole = [sample.replace(b"\n", b"\r\n", sample.split(b"\n\n")[0].count(b"\n") + 2) for sample in samples]
    whole = [sample.replace(b"\r\n", b" HTTP/1.1\r\n", 1) for sample in whole]
    chunked = (
        b"POST /api/answer HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        % HERE
    )
    upgrade = (
        b"GET / HTTP/1.1\r\nhost: %s\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: eA==\r\n\r\n"
        % HERE
    )
    expect = b"POST /api/answer HTTP/1.1\r\nhost: %s\r\nexpect: 100-continue\r\ncontent-length: 99\r\n\r\n" % HERE
    raw = [
        b"RAW " + one
        for one in (
            *whole[::3],
            chunked,
            upgrade,
            expect,
            b"GET /",
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        )
    ]
    half = [b"HALF " + one[: len(one) // 2] for one in (*whole[:4], chunked)]
    return Target([*samples, *raw, *half], read, close=server.close)


def _harmless(data: bytes) -> bool:
    """Return True where a body asks a question that is answered at once: the server's processes take one at a time."""
    from fabrictwin.web import spec_answers
    from fabrictwin.web.sources import Source

    if b"/api/jobs" in data.partition(b"\n")[0]:
        return data[:4] != b"POST" or b"doctor" in data or b"diff" in data
    try:
        body = json.loads(data.partition(b"\n\n")[2])
        text, given, edits = body.get("text", ""), body.get("data"), body.get("edits", {})
        source = Source(text, given, edits, str(ROOT / "examples"))
        return _quick(spec_answers.closed_form, (source,))
    except Exception:  # whatever it is, the server has to say it
        return True


PAGE: dict[str, Callable[[], Target]] = {"page-requests": _page_requests, "page-socket": _page_socket}

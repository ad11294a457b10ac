"""Requests that must be refused: other names, other origins, other files, too much."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

from support.web_server import HERE, PORT, example, served

from fabrictwin.base.errors import ConfigError
from fabrictwin.web.guard import MOST_BODY_BYTES
from fabrictwin.web.sources import Source, folder_of, spec_of
from fabrictwin.web.uploads import Uploads


@pytest.fixture(scope="module")
def client():
    with served() as found:
        yield found


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        "127.0.0.1:80",
        f"127.0.0.1.evil.example:{PORT}",
        f"a@127.0.0.1:{PORT}",
        "",
        f"localhost:{PORT}/x",
        "[::1",
    ],
)
def test_other_names_are_not_answered(client, host):
    assert client.get("/api/info", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", [f"localhost:{PORT}", f"127.0.0.1:{PORT}", f"[::1]:{PORT}"])
def test_its_own_names_are_answered(client, host):
    assert client.get("/api/info", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"http://localhost:{PORT}", f"https://127.0.0.1:{PORT}"]
)
def test_other_origins_are_refused(client, origin):
    headers = {"origin": origin, "content-type": "application/json"}
    for method, path in (
        ("GET", "/api/info"),
        ("POST", "/api/answer"),
        ("POST", "/api/jobs"),
        ("OPTIONS", "/api/jobs"),
    ):
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == 403, path
        assert "access-control-allow-origin" not in answer.headers
    assert client.get("/api/info", headers={"origin": HERE}).status_code == 200


def test_another_site_may_link_to_the_page_and_do_nothing_else(client):
    far = {"sec-fetch-site": "cross-site"}
    assert client.get("/", headers={**far, "sec-fetch-mode": "navigate"}).status_code == 200
    assert client.get("/", headers={**far, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.get("/api/info", headers={**far, "sec-fetch-mode": "navigate"}).status_code == 403
    assert client.get("/app.js", headers={**far, "sec-fetch-mode": "no-cors"}).status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_forms_of_other_pages_are_not_read(client, kind):
    body = json.dumps({"text": example()})
    assert client.post("/api/answer", content=body, headers={"content-type": kind}).status_code == 415


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/server.py",
        "/api/specs/examples/..%2f..%2fpyproject.toml",
        "/api/specs/folder/%2fetc%2fpasswd",
        "/api/jobs/..%2f..%2fetc",
        "/api/jobs/0001/files/..%2fanswer.json",
        "/api/catalog/host/..%2f..",
        "//etc/passwd",
    ],
)
def test_no_path_leads_out(client, path):
    answer = client.get(f"{HERE}{path}")
    assert answer.status_code in (404, 405, 422), path
    assert "root:" not in answer.text


@pytest.mark.parametrize("name", ["..%2fx", ".hidden", "a%2fb", "%00", "x" * 200, "-rf"])
def test_a_file_has_a_name_and_no_folder(client, name):
    octets = {"content-type": "application/octet-stream"}
    assert client.put(f"/api/files/{name}", content=b"x", headers=octets).status_code in (404, 405, 422)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workload.training.model", "/etc/passwd"),
        ("workload.training.model", "../pyproject.toml"),
        ("workload.training.model", "models/../../pyproject.toml"),
        ("workload.training.model", "~/x"),
        ("cluster", "/etc/passwd"),
        ("cluster", "../../x.yaml"),
        ("nccl.NCCL_TOPO_FILE", "/etc/passwd"),
        ("nccl.NCCL_GRAPH_FILE", "../x"),
    ],
)
def test_a_spec_names_no_file_elsewhere(client, key, value):
    asked = {"text": example(), "edits": {key: value}}
    for path in ("/api/answer", "/api/map"):
        answer = client.post(path, json=asked)
        assert "expected the name of a file beside the spec" in answer.text
        assert "root:" not in answer.text


def test_a_link_in_the_served_folder_leads_nowhere(tmp_path):
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "spec.yaml").write_text(example().replace("models/llama-3-8b.json", "out/passwd"))
    secret = tmp_path.parent / "secret.yaml"
    secret.write_text("hosts: {type: dgx-h100, count: 4}\n")
    (tmp_path / "named.yaml").symlink_to(secret)
    with served(spec=tmp_path) as client:
        text = client.get("/api/specs/folder/spec.yaml").json()["text"]
        found = client.post("/api/answer", json={"text": text, "base": "folder"}).json()
        assert "beside the spec" in found["errors"][0]["message"]
        asked = {"text": example(), "base": "folder", "edits": {"cluster": "named.yaml"}}
        assert "beside the spec" in client.post("/api/answer", json=asked).json()["errors"][0]["message"]


def test_bodies_have_a_limit_said_or_not(client):
    big = b"[" + b" " * MOST_BODY_BYTES
    kind = {"content-type": "application/json"}
    assert client.post("/api/answer", content=big, headers=kind).status_code == 413

    def pieces():
        for _ in range(MOST_BODY_BYTES // 2**16 + 2):
            yield b" " * 2**16

    assert client.post("/api/answer", content=pieces(), headers=kind).status_code == 413
    assert client.post("/api/answer", content=b"{}", headers={**kind, "content-length": "-1"}).status_code in (
        400,
        413,
    )


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b'{"text": NaN}', b"\xff\xfe", b"null", b'"text"', b"[]"]
)
def test_what_is_not_a_request_is_refused(client, body):
    answer = client.post("/api/answer", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"]


def test_a_text_that_is_no_spec_has_errors_and_no_answer(client):
    for text in (
        "a: &a [*a]",
        "[" * 5000,
        "!!python/object:os.system {}",
        "\x00",
        "- - -",
        "schema: 1\ncluster: 3",
    ):
        found = client.post("/api/answer", json={"text": text})
        assert found.status_code == 200
        assert found.json()["errors"]


def test_others_need_the_token():
    with served(token="letmein", names=("box.example",)) as client:
        assert client.get("/api/info").status_code == 401
        assert client.get("/").status_code == 401
        assert client.get("/api/info?token=letmein").status_code == 401
        assert client.get("/api/info", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/api/info", headers={"authorization": "Bearer letmein"}).status_code == 200
        opened = client.get("/?token=letmein", follow_redirects=False)
        assert opened.status_code == 303
        assert "HttpOnly" in opened.headers["set-cookie"]
        assert client.get("/api/info").status_code == 200  # by the cookie
        assert client.get("/api/info", headers={"host": f"box.example:{PORT}"}).status_code in (200, 401)
        assert client.get("/api/info", headers={"host": f"other.example:{PORT}"}).status_code == 421


def test_every_answer_forbids_what_a_page_should_not_do(client):
    for path in ("/", "/app.js", "/api/info", "/none"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_uploads_keep_to_their_room(tmp_path, monkeypatch):
    monkeypatch.setattr("fabrictwin.web.uploads.MOST_BYTES", 100)
    kept = Uploads(tmp_path)
    first = kept.add("a", b"x" * 60)
    kept.add("b", b"y" * 60)
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ConfigError, match="not kept"):
        kept.path(first.id)


@pytest.mark.parametrize(
    "body",
    [
        rb'{"text": "a: 1", "edits": {"name": 1e400}}',
        rb'{"data": {"name": -1e999}}',
        rb'{"text": "a: 1", "edits": {"name": "\ud800"}}',
        rb'{"data": {"\uDFFF": "x", "schema": 1, "cluster": 5}}',
    ],
)
def test_a_body_that_no_answer_could_repeat_is_refused(client, body):
    answer = client.post("/api/answer", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"] == "expected JSON"


def test_both_halves_of_a_character_are_one(client):
    body = rb'{"text": "a: 1", "edits": {"name": "\ud83d\ude00"}}'
    answer = client.post("/api/answer", content=body, headers={"content-type": "application/json"})
    assert answer.json()["data"]["name"] == "\N{GRINNING FACE}"


@pytest.mark.parametrize(("number", "shown"), [(".inf", ".inf"), ("-1e400", "-.inf"), (".nan", ".nan")])
def test_a_number_that_json_has_not_is_said_and_answered(client, number, shown):
    text = example().replace("global_batch: 256", f"global_batch: {number}")
    assert number in text
    found = client.post("/api/answer", json={"text": text}).json()
    assert found["data"]["workload"]["training"]["global_batch"] == shown
    assert found["errors"][0]["key"] == "workload.training.global_batch"


def test_an_address_that_is_not_ascii_is_refused(client):
    sent = asked_of(client.app, query=b"to\x88en=abc")
    assert sent[0]["status"] == 400


def asked_of(app, *, query=b"", method="GET", path="/", parts=(), headers=()):
    """Return what the application sends for a request whose body comes in these parts, then never ends."""
    scope = {
        "type": "http", "http_version": "1.1", "scheme": "http", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": query, "root_path": "", "client": None, "server": None,
        "headers": [(b"host", f"127.0.0.1:{PORT}".encode()), *headers],
    }  # fmt: skip
    left, sent = list(parts), []

    async def receive():
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


_JSON = ((b"content-type", b"application/json"), (b"content-length", b"100"))


def test_a_body_that_does_not_end_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr("fabrictwin.web.guard.BODY_S", 0.05)
    parts = [{"type": "http.request", "body": b"{", "more_body": True}]
    sent = asked_of(client.app, method="POST", path="/api/answer", parts=parts, headers=_JSON)
    assert sent[0]["status"] == 408


def test_a_request_whose_sender_leaves_raises_nothing(client):
    parts = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent = asked_of(client.app, method="POST", path="/api/answer", parts=parts, headers=_JSON)
    assert sent[0]["status"] == 408


@contextmanager
def listening(app):
    """Serve an application as the page is served, by its sockets; yields where."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    from fabrictwin.web.connections import BoundedProtocol

    with socket.create_server(("127.0.0.1", 0)) as opened:
        config = uvicorn.Config(app, http=BoundedProtocol, lifespan="off", log_level="error", log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            yield opened.getsockname()
        finally:
            server.should_exit = True
            thread.join()


async def slow(scope, receive, send):
    """Answer later than a request may take."""
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"late"})


@pytest.mark.parametrize("begun", [b"", b"GET /api/info HTTP/1.1\r\nhost: 127"])
def test_a_connection_without_a_request_is_closed(monkeypatch, begun):
    monkeypatch.setattr("fabrictwin.web.connections.HEAD_S", 0.2)
    with (
        listening(slow) as place,
        socket.create_connection(place, 30) as half,
        socket.create_connection(place, 30) as whole,
    ):
        half.sendall(begun)
        whole.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert half.recv(100) == b""
        assert b"".join(iter(lambda: whole.recv(1000), b"")).endswith(b"late\r\n0\r\n\r\n")


HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


async def at_once(scope, receive, send):
    """Begin to answer before the body came, and end behind it."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await receive()
    await asyncio.sleep(0.1)
    await send({"type": "http.response.body", "body": b"done"})


@pytest.mark.parametrize("app", [slow, at_once])
@pytest.mark.parametrize("pieces", [(HEAD + b"no chunk\r\n",), (HEAD, b"2\r\n{}\r\n", b"no chunk\r\n")])
def test_garbage_in_a_body_is_no_traceback(caplog, app, pieces):
    with listening(app) as place, socket.create_connection(place, 30) as connection, suppress(ConnectionError):
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.05)  # a read of its own
        while connection.recv(1000):
            pass
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


@pytest.mark.parametrize(
    "change", [{"cluster": "/etc/passwd"}, {"workload": {"serving": {"model": "../secret.json"}}}]
)
def test_a_neighbour_that_was_dropped_in_names_no_file_elsewhere(tmp_path, change):
    cluster = {
        "hosts": {"type": "dgx-h100", "count": 2},
        "network": {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"},
    }
    whole = {"schema": 1, "cluster": cluster, "workload": {"serving": {"model": "m.json"}}}
    dropped = tmp_path / "dropped"
    dropped.write_text(json.dumps({**whole, **change}))
    asked = {**whole, "workload": {"serving": {"model": "m.json", "neighbours": ["other.yaml"]}}}
    source = Source(data=asked, files={"other.yaml": str(dropped)})
    with folder_of(source) as folder, pytest.raises(ConfigError, match="the name of a file beside the spec"):
        spec_of(source, folder)

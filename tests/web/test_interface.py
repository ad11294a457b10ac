"""The HTTP interface as programs use it: answers, jobs, tables, and its own description."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

from support.web_server import example, finished, served

import fabrictwin as ft
from fabrictwin.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = {"kind": "run", "spec": {"text": example()}, "fidelity": "flow"}


@pytest.fixture(scope="module")
def client():
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def run(client) -> dict[str, Any]:
    job = finished(client, RUN)
    assert job["state"] == "done", job
    return job


def answer(client, **asked: Any) -> dict[str, Any]:
    found = client.post("/api/answer", json={"text": example(), **asked})
    assert found.status_code == 200, found.text
    return found.json()


def test_the_closed_form_is_what_python_answers(client):
    spec = ft.load("examples/laptop.yaml").with_(cluster__hosts__count=8)
    mine = answer(client, edits={"cluster.hosts.count": 8})
    assert mine["errors"] == []
    assert mine["summary"]["step_time_ps"] == ft.run(spec, fidelity="analytic").summary["step_time_ps"]
    assert "count: 8" in mine["text"]
    assert mine["adapters"][:2] == ["mlx5_0", "mlx5_3"]


def test_text_that_is_not_edited_stays_as_it_was_written(client):
    assert answer(client)["text"] == example()


def test_a_spec_that_is_named_from_its_own_folder_finds_what_lies_beside_it(monkeypatch):
    """The processes that answer work in folders of their own."""
    monkeypatch.chdir(EXAMPLES)
    with served(spec=Path("laptop.yaml")) as client:
        text = client.get("/api/specs/folder/laptop.yaml").json()["text"]
        found = client.post("/api/answer", json={"text": text, "base": "folder"}).json()
    assert not found["errors"]


def test_every_error_has_its_key_and_its_line(client):
    text = (
        example()
        .replace("count: 4", "count: none")
        .replace("pp: 2", "pp: 0")
        .replace("sequence: 8192", "sequenc: 1")
    )
    found = {one["key"]: one for one in answer(client, text=text)["errors"]}
    assert {"cluster.hosts.count", "workload.training.parallel.pp", "workload.training.sequenc"} <= set(found)
    lines = text.splitlines()
    assert "pp: 0" in lines[found["workload.training.parallel.pp"]["line"] - 1]
    assert "did you mean 'sequence'" in found["workload.training.sequenc"]["message"]


def test_an_edit_that_cannot_be_says_why_at_its_key(client):
    found = answer(client, edits={"workload.training.parallel.tp": 3})
    assert [one["key"] for one in found["errors"]] == ["workload.training.parallel.tp"]
    assert found["summary"] is None


def test_null_removes_a_key(client):
    assert (
        "precision"
        not in answer(client, edits={"workload.training.precision": None})["data"]["workload"]["training"]
    )


def test_a_run_is_what_python_answers(client, run):
    mine = client.get(f"/api/jobs/{run['id']}/answer").json()
    theirs = ft.run("examples/laptop.yaml", fidelity="flow").summary
    assert mine["step_time_ps"] == theirs["step_time_ps"]
    assert mine["busiest_links"] == theirs["busiest_links"]


def test_tables_have_units_in_every_form(client, run):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = f"/api/jobs/{run['id']}/tables/links"
    table = client.get(path).json()
    unit = {one["name"]: one["unit"] for one in table["fields"]}
    assert unit["tx_bytes"] == "B"
    assert unit["rate_gbps"] == "Gb/s"
    assert unit["link"] is None
    read = parquet.read_table(io.BytesIO(client.get(path, params={"format": "parquet"}).content))
    assert read.schema.field("tx_bytes").metadata == {b"unit": b"B"}
    assert read.column("tx_bytes").to_pylist() == table["columns"]["tx_bytes"]
    text = client.get(path, params={"format": "csv"}).text
    assert len(text.splitlines()) == 1 + len(table["columns"]["link"])
    parts = client.get(f"/api/jobs/{run['id']}/tables/breakdown").json()["columns"]
    step = client.get(f"/api/jobs/{run['id']}/answer").json()["step_time_s"]
    assert sum(parts["time_s"]) == pytest.approx(step)


def test_a_cell_of_a_matrix_has_its_links(client, run):
    found = client.get(f"/api/jobs/{run['id']}/matrices").json()
    links = client.get(f"/api/jobs/{run['id']}/matrices/0/1/2").json()
    assert found[0]["rows"][1] == "host-1"
    assert len(links) == found[0]["links"][1][2] == 2
    assert all("host-1/" in one["link"] for one in links)
    assert links[0]["utilisation"] == pytest.approx(found[0]["greatest"][1][2], abs=1e-4)


def test_a_map_has_every_cable_once(client, run):
    plain = client.post("/api/map", json={"text": example()}).json()
    used = client.get(f"/api/jobs/{run['id']}/map").json()
    assert plain["hosts"]["count"] == 4
    assert len(plain["adapters"]["host"]) == 32
    assert sum(plain["trunks"]["cables"]) >= 32
    assert "use" not in plain["adapters"] or plain["adapters"]["use"] is None
    assert max(used["adapters"]["use"]) > 0
    assert used["racks"] == plain["racks"]


def test_a_path_goes_hop_by_hop_and_inside_hosts(client):
    asked = {"text": example(), "from": "host-0/gpu0", "to": "host-3/gpu3"}
    found = client.post("/api/path", json=asked).json()
    ends = [one["link"].split(" > ") for one in found["hops"]]
    assert ends[0][0].startswith("host-0/gpu0")
    assert ends[-1][1].startswith("host-3/gpu3")
    assert {"pcie", "infiniband"} <= {one["kind"] for one in found["hops"]}
    wrong = client.post("/api/path", json={**asked, "to": "host-9/gpu0"})
    assert wrong.status_code == 422
    assert "did you mean" in wrong.json()["errors"][0]["message"]


def test_a_job_that_is_cancelled_ends_and_the_next_one_runs(client):
    large = {"text": example("packets"), "edits": {"workload.training.global_batch": 256}}
    job = client.post("/api/jobs", json={**RUN, "spec": large, "fidelity": "packet"}).json()
    end = time.monotonic() + 120
    while client.get(f"/api/jobs/{job['id']}").json()["state"] == "queued" and time.monotonic() < end:
        time.sleep(0.02)
    assert client.post(f"/api/jobs/{job['id']}/cancel").json()["state"] == "cancelled"
    assert client.get(f"/api/jobs/{job['id']}/answer").status_code == 409
    assert finished(client, RUN)["state"] == "done"


def test_events_follow_a_job_to_its_end(client):
    job = client.post("/api/jobs", json={**RUN, "fidelity": "analytic"}).json()
    with client.stream("GET", f"/api/jobs/{job['id']}/events") as stream:
        states = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    assert states[-1]["state"] == "done"
    assert states[-1]["fraction"] == 1.0


def test_a_failed_job_says_why(client):
    spec = {"text": example(), "edits": {"workload.training.parallel.tp": 64}}
    job = finished(client, {**RUN, "spec": spec})
    assert job["state"] == "failed"
    assert job["error"]["key"].startswith("workload.training")


def test_two_runs_differ_by_what_was_changed(client, run):
    other = finished(
        client, {**RUN, "spec": {"text": example(), "edits": {"cluster.network.link_rate": "100 Gb/s"}}}
    )
    job = finished(client, {"kind": "diff", "before": run["id"], "after": other["id"]})
    found = client.get(f"/api/jobs/{job['id']}/answer").json()
    assert [one["key"] for one in found["asked"]] == ["cluster.network.link_rate"]
    assert found["slower"] > 0


def test_dropped_files_are_told_apart_and_used(client):
    model = (client.service.bundled("examples", "laptop").parent / "models" / "llama-3-70b.json").read_bytes()
    octets = {"content-type": "application/octet-stream"}
    kept = client.put("/api/files/mine.json", content=model, headers=octets).json()
    assert kept["kind"] == "model"
    found = answer(
        client,
        files={"mine.json": kept["id"]},
        edits={"workload.training.model": "mine.json", "workload.training.parallel.tp": 8},
    )
    assert found["errors"] == []
    assert found["summary"]["parameters"] > 60e9
    text = b"host:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
    log = client.put("/api/files/run.log", content=text, headers=octets).json()
    assert log["kind"] == "log"
    job = finished(client, {"kind": "doctor", "files": {"run.log": log["id"]}})
    said = client.get(f"/api/jobs/{job['id']}/answer").json()
    assert said["files"][0]["file"] == "run.log"


@pytest.mark.parametrize(
    ("name", "cards"),
    [
        ("Azure_azhpc-images_ndv4-topo.xml", {"gpu": "a100-80", "nic": "connectx-6", "nvswitch": "nvswitch2"}),
        ("Azure_azhpc-images_ndv5-topo.xml", {"gpu": "h100-sxm", "nic": "connectx-7", "nvswitch": "nvswitch3"}),
    ],
)
def test_a_dropped_topology_is_the_hosts_once_its_cards_are_named(client, shared, name, cards):
    path = shared / "data" / "nccl_topology" / name
    octets = {"content-type": "application/octet-stream"}
    kept = client.put(f"/api/files/{name}", content=path.read_bytes(), headers=octets).json()
    assert kept["kind"] == "nccl-topology"
    files = {name: kept["id"]}
    dropped = {"type": None, "nccl_xml": {"file": name}}
    unnamed = answer(client, files=files, edits={"cluster.hosts": dropped})
    assert "says not which GPUs these are, expected the key gpu" in unnamed["errors"][0]["message"]
    named = {**dropped, "nccl_xml": {"file": name, "cpu": "epyc-7742", **cards}}
    found = answer(client, files=files, edits={"cluster.hosts": named})
    assert found["errors"] == []
    assert found["summary"]["cluster"]["gpus"] == 32


def test_a_dropped_fabric_is_the_cluster(client, capsys):
    assert main(["topology", "export", "examples/laptop.yaml", "--format", "ibnetdiscover"]) == 0
    fabric = capsys.readouterr().out.encode()
    octets = {"content-type": "application/octet-stream"}
    kept = client.put("/api/files/fabric.txt", content=fabric, headers=octets).json()
    assert kept["kind"] == "ibnetdiscover"
    cluster = {
        "ibnetdiscover": "fabric.txt",
        "hosts": None,
        "network": None,
        "bind": [{"match": "*", "host": "dgx-h100"}],
    }
    found = answer(client, files={"fabric.txt": kept["id"]}, edits={"cluster": cluster})
    assert found["errors"] == []
    assert found["summary"]["cluster"]["hosts"] == 4
    assert found["summary"]["step_time_ps"] == answer(client)["summary"]["step_time_ps"]


def test_the_description_is_valid_and_answers_keep_to_it(client, run):
    from jsonschema import Draft202012Validator
    from openapi_spec_validator import validate

    document = client.get("/openapi.json").json()
    validate(document)
    assert all(path.startswith("/api/") for path in document["paths"])

    def check(path: str, method: str, status: int, data: Any) -> None:
        content = document["paths"][path][method]["responses"][str(status)]["content"]["application/json"]
        schema = {**content["schema"], "components": document["components"]}
        Draft202012Validator(schema).validate(data)

    job = run["id"]
    for path, asked in (
        ("/api/info", "/api/info"),
        ("/api/jobs", "/api/jobs"),
        ("/api/jobs/{job}", f"/api/jobs/{job}"),
        ("/api/jobs/{job}/map", f"/api/jobs/{job}/map"),
        ("/api/jobs/{job}/matrices", f"/api/jobs/{job}/matrices"),
        ("/api/jobs/{job}/matrices/{matrix}/{row}/{column}", f"/api/jobs/{job}/matrices/0/0/0"),
        ("/api/jobs/{job}/tables/{table}", f"/api/jobs/{job}/tables/flows"),
        ("/api/specs/{base}/{name}", "/api/specs/examples/laptop"),
        ("/api/catalog", "/api/catalog"),
        ("/api/catalog/{kind}/{name}", "/api/catalog/host/dgx-h100"),
    ):
        found = client.get(asked)
        check(path, "get", found.status_code, found.json())
        assert found.status_code == 200, asked
    check("/api/answer", "post", 200, answer(client))
    check("/api/answer", "post", 422, client.post("/api/answer", json={"texts": 1}).json())
    check("/api/map", "post", 200, client.post("/api/map", json={"text": example()}).json())


def test_what_is_asked_wrongly_is_refused_with_the_reason(client):
    found = client.post("/api/jobs", json={"kind": "run", "spec": {"text": example()}, "fidelty": "flow"})
    assert found.status_code == 422
    assert "fidelty" in json.dumps(found.json())
    assert client.post("/api/jobs", json={"kind": "walk"}).status_code == 422
    assert client.get("/api/jobs/0999").status_code == 404
    assert client.get("/api/specs/examples/none").status_code == 404
    assert client.get("/api/jobs/0001/tables/none").status_code == 422


def test_a_full_queue_says_so():
    from fabrictwin.web.jobs import Limits

    with served(limits=Limits(waiting=2)) as client:
        found = [client.post("/api/jobs", json=RUN).status_code for _ in range(6)]
    assert found[0] == 202
    assert found[-1] == 503


@pytest.mark.second
def test_only_so_many_runs_are_kept():
    from fabrictwin.web.jobs import Limits

    with served(limits=Limits(kept=2)) as client:
        jobs = [finished(client, {**RUN, "fidelity": "analytic"}) for _ in range(4)]
        end = time.monotonic() + 10
        while len(client.get("/api/jobs").json()["jobs"]) > 2 and time.monotonic() < end:
            time.sleep(0.02)
        assert [one["id"] for one in client.get("/api/jobs").json()["jobs"]] == [one["id"] for one in jobs[2:]]
        assert len(list((client.service.root / "jobs").iterdir())) == 2
        root = client.service.root
    assert not root.exists()

"""Kernels compiled before they are needed: small jobs over each technology at each fidelity, single messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.progress import Stage, silent
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec, read_spec
from fabrictwin.engines.base.play import compile_messages
from fabrictwin.runs.examples import MODELS, examples_folder
from fabrictwin.runs.execute import predict
from fabrictwin.twin import Twin

_SWITCHES = {"infiniband": "qm9700", "ethernet": "spectrum-4"}
_FIDELITIES = ("analytic", "flow", "packet")


def warm(stage: Stage = silent) -> Path:
    """Run the small jobs, which compiles what the cache does not have; returns the cache's folder."""
    jobs = list(small_jobs())
    for at, spec in enumerate(jobs):
        stage(f"compiling for fidelity {spec.run.fidelity} over {spec.name}", at / len(jobs))
        predict(spec, what_if=True)  # as the command line asks
    stage("compiling for single messages", 1.0)
    messages: tuple[Fidelity, ...] = ("flow", "packet")
    for fidelity in messages:
        compile_messages(Twin(build(jobs[0].cluster, spec=jobs[0])).start_engine(fidelity))
    from numba import config  # heavy to import; the kernels have set its folder

    return Path(config.CACHE_DIR)  # type: ignore[attr-defined]  # numba sets its attributes one by one


def small_jobs() -> Iterator[Spec]:
    """Return a step of a model on two hosts: each technology at each fidelity, without and with NCCL's rules."""
    training = {
        "model": str(examples_folder() / MODELS / "llama-3-8b.json"),
        "parallel": {"tp": 8, "pp": 2},
        "micro_batch_size": 1,
        "global_batch": 2,
        "sequence": 512,
        "precision": "bf16",
    }
    for technology, switch in _SWITCHES.items():
        network = {"technology": technology, "switch": switch, "topology": {"kind": "rail-optimised"}}
        for fidelity in _FIDELITIES:
            job = {
                "schema": 1,
                "name": technology,
                "cluster": {"hosts": {"type": "dgx-h100", "count": 2}, "network": network},
                "workload": {"training": training},
                "run": {"fidelity": fidelity},
            }
            yield read_spec(job)
            if fidelity == "flow":
                yield read_spec(job | {"run": {"fidelity": fidelity, "collectives": "simple"}})

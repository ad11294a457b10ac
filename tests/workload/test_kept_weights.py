"""Weights with a master copy, in 4 bytes under autocast, or in 16 bits as all else; and who issues the kernels."""

from __future__ import annotations

from typing import Any

import pytest
from support.programs import lowered
from support.specs import LLAMA_8B, MIXTRAL, spec_of

from fabrictwin import catalog
from fabrictwin.runs import execute
from fabrictwin.workload.job.workload_section import LAUNCH_PS, Training
from fabrictwin.workload.layers.kernel_traffic import CAST_BYTES, traffic_of
from fabrictwin.workload.memory.gpu_memory import states
from fabrictwin.workload.memory.memory_inputs import memory_inputs_of
from fabrictwin.workload.step.optimizer_step import ADAM_BYTES

spec = spec_of(1, "dgx-h100", model={**LLAMA_8B, "num_hidden_layers": 2}, parallel={"tp": 1}, sequence=2048,
               micro_batches=1, pad_vocabulary=1)  # fmt: skip
WAYS = ("master", "autocast", "same")


def job(**training: Any) -> Any:
    return lowered(spec(**training))[0]


@pytest.mark.parametrize(
    ("weights", "sharding", "held"),
    [
        ("master", "none", (2, 4, 12)), ("autocast", "none", (4, 4, 8)), ("same", "none", (2, 2, 4)),
        ("autocast", "zero-1", (4, 4, 1)), ("same", "zero-1", (2, 2, 0.5)), ("same", "zero-3", (0.25, 0.25, 0.5)),
        ("master", "fsdp", (0.5, 0.5, 1)), ("autocast", "fsdp", (0.5, 0.5, 1)),
        ("same", "fsdp", (0.25, 0.25, 0.5)),
    ],
)  # fmt: skip
def test_states_have_so_many_bytes_a_parameter(weights: str, sharding: str, held: tuple[float, ...]) -> None:
    inputs = memory_inputs_of(job(weights=weights, sharding=sharding))
    assert tuple(each / 8000 for each in states(8000, inputs)) == held


def test_bytes_that_are_exchanged_are_those_that_are_kept() -> None:
    found = {weights: job(weights=weights) for weights in WAYS}
    assert [found[weights].gradient_bytes for weights in WAYS] == [4, 4, 2]
    assert [found[weights].parameter_bytes for weights in WAYS] == [2, 4, 2]
    assert job(weights="same", precision="fp8").parameter_bytes == 1


def test_the_optimizer_moves_what_is_kept() -> None:
    """Read and written: weight or master and two moments; the gradient thrice; a copy beside a master."""
    wide, narrow = 3 * 2, 3
    states = {"master": 4 * (wide + narrow) + 2, "autocast": 4 * (wide + narrow), "same": 2 * (wide + narrow)}
    assert states == ADAM_BYTES


@pytest.mark.parametrize("eager", [False, True])
def test_autocast_casts_weights_at_every_product(eager: bool) -> None:
    """Cast each weight once a pass, and none beside a master copy."""
    kinds = {weights: traffic_of(weights, eager=eager) for weights in WAYS}
    assert [kinds[weights].casts_weights for weights in WAYS] == [False, True, False]
    assert [kinds[weights].casts_inputs for weights in WAYS] == [False, eager, False]
    assert kinds["master"] == kinds["same"]
    assert CAST_BYTES == 4 + 2


@pytest.mark.parametrize("weights", ["autocast", "same"])
def test_fused_norms_read_and_write_once(weights: Any) -> None:
    apart, fused = (traffic_of(weights, eager=True, fused_norms=one) for one in (False, True))
    width = 4 if weights == "autocast" else 2
    assert [one.bytes for one in fused.rms_norm] == [2 * width, 5 * width]
    assert [one.kernels for one in fused.rms_norm] == [1, 1]
    assert all(a.bytes > b.bytes for a, b in zip(apart.rms_norm, fused.rms_norm, strict=True))
    assert traffic_of(weights, eager=False, fused_norms=True) == traffic_of(weights, eager=False)


def section(**training: Any) -> Training:
    return Training(model={"a": 1}, micro_batches=1, sequence=1, **training)


def test_pytorch_issues_its_own_kernels_more_slowly() -> None:
    operator = catalog.framework("pytorch").operator.value
    assert section().launch_ps == LAUNCH_PS < operator
    assert section(kernels="eager").launch_ps == operator
    assert section(kernels="eager", host={"launch": "3 us"}).launch_ps == 3_000_000
    assert section(kernels="eager", host={"graphs": True}).launch_ps == 0


def test_a_small_step_of_eager_kernels_is_as_long_as_the_host_needs() -> None:
    """A device that needs next to nothing waits for each operator."""

    def end_ps(us: float) -> int:
        small = {**LLAMA_8B, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8,
                 "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 256}  # fmt: skip
        found = spec(model=small, kernels="eager", sequence=64, host={"launch": f"{us} us"})
        return execute.predict(found).trace.end_ps

    slow, slower = end_ps(50), end_ps(100)
    assert (slower - slow) / slow > 0.8


@pytest.mark.parametrize("imbalance", [0.0, 0.4])
def test_loads_of_all_layers_are_those_of_each(imbalance: float) -> None:
    experts = {**MIXTRAL, "num_hidden_layers": 4}
    found = job(model=experts, parallel={"tp": 1, "ep": 4}, routing={"imbalance": imbalance, "seed": 3})
    assert found.loads == tuple(found.load(layer) for layer in range(4))
    assert job().loads == (0.0, 0.0)
    assert all(load >= 1 for load in found.loads)

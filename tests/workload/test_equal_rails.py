"""Groups that stand for others on equal rails: they take as long by themselves as all of them together."""

from __future__ import annotations

import numpy as np
import pytest
from support.specs import LLAMA_8B, spec_of

from fabrictwin.base.arrays import I64
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.analytic.closed_forms import ClosedForms
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.program.program import Communication
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.workload.job.equal_rails import EqualRails
from fabrictwin.workload.job.nccl_communications import Library, library_of


def made(of: Spec) -> tuple[ClosedForms, Library, Fabric]:
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    nodes = twin.fabric.gpu_node.astype(np.int32)
    library = library_of(of, blueprint, twin.fabric, nodes)
    assert library is not None
    return ClosedForms(twin.fabric), library, twin.fabric


def job(hosts: int, kind: str = "dgx-h100", topology: str = "rail-optimised", **sections: object) -> Spec:
    made_of = spec_of(hosts, kind, fidelity="flow", topology=topology, model=LLAMA_8B, global_batch=64)
    return made_of(sections=sections)


def rails(of: Spec) -> tuple[EqualRails, ClosedForms, Library]:
    forms, library, _ = made(of)
    return EqualRails(library, forms.network.leaf, forms.network.uplink_bps), forms, library


def groups_of(hosts: int, apart: int, gpus: int = 8) -> I64:
    """Groups of all hosts with every `apart`th GPU of each."""
    ranks = np.arange(hosts * gpus).reshape(hosts, gpus // apart, apart)
    return ranks.transpose(2, 0, 1).reshape(apart, -1)


def took(forms: ClosedForms, library: Library, groups: I64) -> list[int]:
    """Times of every kind that is not played as trees, small and large, in ps."""
    whole: list[Communication] = [
        library.collective(kind, groups, size * groups.shape[1], element_bytes=2, name="x")
        for kind in ("all_gather", "reduce_scatter", "all_to_all")
        for size in (1 << 10, 1 << 16, 1 << 24)
    ]
    if groups.shape[1] == 2:
        whole += [library.send(groups, size, name="x") for size in (1 << 10, 1 << 26)]
    found: list[int] = forms.durations(whole, library.rank_node).tolist()
    return found


@pytest.mark.parametrize(
    "kind", ["dgx-h100", "dgx-a100", "dgx-b200", "grand-teton-hbm2e", "mi300x-8", "h100-pcie-8"]
)
@pytest.mark.parametrize("apart", [2, 4, 8])
def test_who_stands_for_all_takes_as_long_as_all(kind: str, apart: int) -> None:
    equal, forms, library = rails(job(4, kind))
    every = groups_of(4, apart)
    some = equal.representatives(every)
    assert set(some.tolist()) <= set(range(apart))
    assert took(forms, library, every[some]) == took(forms, library, every)


@pytest.mark.parametrize(("apart", "stand"), [(8, [0]), (4, [0]), (2, [0])])
def test_one_rail_of_a_dgx_h100_stands_for_all(apart: int, stand: list[int]) -> None:
    equal, _, _ = rails(job(4))
    assert equal.representatives(groups_of(4, apart)).tolist() == stand


def test_adapters_that_two_gpus_share_keep_both_groups() -> None:
    equal, _, _ = rails(job(4, "dgx-a100"))
    assert equal.representatives(groups_of(4, 8)).tolist() == [0, 1]


def test_pairs_of_hosts_of_one_rail_stand_for_pairs_of_all() -> None:
    equal, forms, library = rails(job(40))
    near = np.arange(320).reshape(20, 2, 8).transpose(0, 2, 1).reshape(-1, 2)  # 160 messages to the next host
    far = np.arange(320).reshape(2, 160).T  # over leaves that messages of 20 hosts leave together
    for pairs in (near, far):
        some = equal.representatives(pairs)
        assert some.tolist() == list(range(0, 160, 8))
        assert took(forms, library, pairs[some]) == took(forms, library, pairs)


def test_rails_that_meet_at_a_leaf_stand_for_themselves() -> None:
    equal, _, _ = rails(job(4, topology="fat-tree"))
    assert equal.representatives(groups_of(4, 8)).tolist() == list(range(8))


def test_groups_on_other_hosts_or_other_gpus_of_a_host_stand_for_themselves() -> None:
    equal, _, _ = rails(job(4))
    every = groups_of(4, 8)
    fewer_hosts = np.concatenate([every[:4, :2], every[4:, 2:]])
    assert equal.representatives(fewer_hosts).tolist() == list(range(8))
    turned = np.stack([every[:, 0], np.roll(every[:, 1], 1)], axis=1)
    assert equal.representatives(turned).tolist() == list(range(8))


@pytest.mark.parametrize("kind", ["pcie-box", "gb200-nvl72"])
def test_hosts_whose_rails_are_not_apart_keep_all_groups(kind: str) -> None:
    equal, _, library = rails(job(2, kind))
    gpus = len(library.rank_node) // 2
    assert equal.representatives(groups_of(2, gpus, gpus)).tolist() == list(range(gpus))


def test_a_host_that_is_not_as_the_others_keeps_all_groups() -> None:
    sick = {"host": "host-1", "cause": "no-gpudirect-module"}
    equal, _, _ = rails(job(4, faults=[sick]))
    assert equal.representatives(groups_of(4, 8)).tolist() == list(range(8))
    reduces, _, _ = rails(job(4, nccl={"NCCL_COLLNET_ENABLE": 1}))
    assert reduces.representatives(groups_of(4, 8)).tolist() == list(range(8))

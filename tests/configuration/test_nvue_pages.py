"""Each NVUE command that is written has the form of a page of NVIDIA's reference."""

from __future__ import annotations

import re

import pytest
from support.configured import spec_of

from fabrictwin.configuration.policy.cluster_policy import configuration, plan
from fabrictwin.configuration.writers.nvue import script
from fabrictwin.configuration.writers.nvue_pages import FORMS, page_of

CLUSTERS = [
    {"topology": {"kind": "rail-optimised"}},
    {"topology": {"kind": "fat-tree", "tiers": 2}},
    {"topology": {"kind": "fat-tree", "tiers": 2}, "qos": {"lossless": False}},
    {"topology": {"kind": "fat-tree", "tiers": 2}, "qos": {"dscp": 24, "priority": 4, "cnp_priority": 7}},
]


def commands(network: dict[str, object]) -> set[str]:
    made = configuration(plan(spec_of(**network)), "nvue", os="nvue")
    lines = "".join(script(switch) for switch in made.switches.values()).splitlines()
    return {line.strip() for line in lines if line.startswith("nv ")}


@pytest.mark.parametrize("network", CLUSTERS, ids=range(len(CLUSTERS)))
def test_every_command_is_on_a_page(network):
    found = commands(network)
    assert len(found) > 100
    assert [command for command in sorted(found) if not page_of(command)] == []


def test_every_form_is_used_and_others_are_on_no_page():
    found = set().union(*(commands(network) for network in CLUSTERS))
    bare = [command.partition(" # ")[0].strip() for command in found]
    assert [form for form, _ in FORMS if not any(re.fullmatch(form, command) for command in bare)] == []
    pages = {page_of(command).rsplit("/", 2)[1] for command in found}
    assert pages == {page for _, page in FORMS} | {"Config-Commands"}
    for wrong in ("nv set qos pfc", "nv set qos roce enable", "nv set interface swp1 mtu 9216", "rm -rf /"):
        assert page_of(wrong) == ""

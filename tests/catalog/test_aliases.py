"""Names that switches are sold by."""

from __future__ import annotations

import pytest

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.cli import main
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec


def network(switch: str) -> dict:
    """Two hosts on one switch."""
    return {"technology": "ethernet", "topology": {"kind": "single-switch"}, "switch": switch}


@pytest.mark.parametrize(
    ("sold", "name"), [("sn5600", "spectrum-4"), ("SN5600", "spectrum-4"), ("QM9790", "qm9700")]
)
def test_a_switch_is_found_by_the_name_it_is_sold_by(sold, name):
    assert catalog.switch(sold).name == name


def test_a_cluster_has_the_catalogs_name_however_it_was_written():
    hosts = {"type": "dgx-h100", "count": 2}
    found = []
    for switch in ("sn5600", "SN5600", "spectrum-4"):
        spec = read_spec({"schema": 1, "cluster": {"hosts": hosts, "network": network(switch)}})
        found.append(build(spec.cluster, spec=spec).switches)
    assert found[0] == found[1] == found[2]
    assert {site.type for site in found[0]} == {"spectrum-4"}


def test_no_alias_names_two_switches_or_is_a_name_itself():
    aliases = [alias for name in catalog.names("switch") for alias in catalog.switch(name).aliases]
    assert len(set(aliases)) == len(aliases)
    assert not set(aliases) & set(catalog.names("switch"))
    assert all(alias == alias.lower() for alias in aliases)


def test_what_is_no_name_is_refused_still():
    with pytest.raises(ConfigError, match="got 'sn9999', expected one of the switches in the catalog"):
        catalog.switch("sn9999")


def test_an_entry_is_found_and_shown_by_the_name_that_it_is_sold_by(capsys):
    assert [(kind, entry.name) for kind, entry in catalog.find("SN5600")] == [("switch", "spectrum-4")]
    assert main(["catalog", "show", "sn5600"]) == 0
    assert capsys.readouterr().out.startswith("spectrum-4  switch")
    with pytest.raises(ConfigError) as caught:
        catalog.find("9" * 5000)
    assert len(str(caught.value)) < 300

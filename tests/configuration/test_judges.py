"""Generated files under programs that nobody here wrote: yanglint, OpenSM, netplan, slurmctld.

They come with the Debian packages libyang-tools, opensm, infiniband-diags, libumad2sim0, netplan.io and slurmctld.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.configured import planned, spec_of, write
from support.real_tools import JUDGED_BY_REAL_TOOLS, Up, dumped_tables

from fabrictwin.configuration.policy.cluster_policy import plan
from fabrictwin.subnet.manager.settings.partitions import Everybody, read_partitions


def _needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"not installed: {program}")


@pytest.mark.second
@_needs("yanglint")
@pytest.mark.parametrize("lossless", [True, False])
def test_sonics_own_models_take_every_config_db(lossless: bool, tmp_path: Path, shared: Path) -> None:
    of = plan(spec_of(topology={"kind": "fat-tree", "tiers": 2}, qos={"lossless": lossless}))
    write(of, tmp_path, ("sonic",))
    paths = sorted(tmp_path.rglob("config_db.json"))
    assert len(paths) >= 2
    for path in (paths[0], paths[-1]):
        judge = [sys.executable, str(shared / "judges" / "sonic_yang.py"), str(path)]
        done = subprocess.run(judge, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert "no-model []" in done.stdout


@pytest.mark.second
@_needs("netplan")
@pytest.mark.parametrize("technology", ["ethernet", "infiniband"])
def test_netplan_generates_from_every_host(technology: str, tmp_path: Path) -> None:
    write(planned(technology), tmp_path, ("host",))
    for source in sorted(tmp_path.glob("hosts/*/60-fabric.yaml")):
        root = tmp_path / "roots" / source.parent.name
        target = root / "etc/netplan/60-fabric.yaml"
        target.parent.mkdir(parents=True)
        target.write_text(source.read_text())
        target.chmod(0o600)
        command = ["netplan", "generate", "--root-dir", str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        made = "".join(path.read_text() for path in (root / "run/systemd/network").glob("*.network"))
        assert made.count("[Match]") == 9
        assert ("InfiniBand" in made or "IPoIB" in made) or technology == "ethernet"


def _slurm_conf(folder: Path, nodes: str) -> Path:
    path = folder / "slurm.conf"
    lines = (folder / "slurm/slurm-fabric.conf").read_text()
    path.write_text(
        f"ClusterName=twin\nSlurmctldHost=localhost\nAuthType=auth/none\nCryptoType=crypto/none\n"
        f"StateSaveLocation={folder}/state\nSlurmctldPidFile={folder}/slurmctld.pid\nSlurmUser=root\n"
        f"SlurmctldPort=26817\nSlurmdPort=26818\nSlurmctldLogFile={folder}/slurmctld.log\n{lines}"
        f"NodeName={nodes} NodeAddr=127.0.0.1 Gres=gpu:h100_sxm:8\n"
        f"PartitionName=all Nodes={nodes} Default=YES\n"
    )
    (folder / "state").mkdir()
    for name in ("topology.conf", "gres.conf"):
        (folder / name).write_text((folder / "slurm" / name).read_text())
    return path


def _slurmctld(folder: Path, nodes: str) -> tuple[int | None, str]:
    """(exit code, None where it was still running after some seconds; what it said)."""
    conf = _slurm_conf(folder, nodes)
    try:
        done = subprocess.run(
            ["slurmctld", "-D", "-c", "-f", str(conf)], capture_output=True, text=True, timeout=8, check=False
        )
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, said = None, (error.stderr or b"").decode(errors="replace")
    log = folder / "slurmctld.log"
    return code, said + (log.read_text() if log.exists() else "")


@pytest.mark.second
@_needs("slurmctld")
def test_slurmctld_takes_the_topology_and_refuses_a_broken_one(tmp_path: Path) -> None:
    of = plan(spec_of("infiniband", hosts=80, topology={"kind": "fat-tree", "tiers": 2}))
    for name, edit in (("good", ""), ("broken", "SwitchName=top Switches=leaf-0,nowhere\n")):
        folder = tmp_path / name
        write(of, folder, ("slurm",))
        path = folder / "slurm/topology.conf"
        assert path.read_text().count("SwitchName=") > 2
        path.write_text(path.read_text() + edit)
        code, said = _slurmctld(folder, "host-[0-79]")
        if edit:
            assert "invalid child" in said
            assert code == 1
        else:
            assert code is None, said
            assert "fatal" not in said.lower()
            assert "invalid child" not in said


_COMPLAINTS = r"PARSE ERROR|Parsing error|Unrecognized token|cannot find or setup routing engine|Invalid"


@pytest.mark.parametrize("hosts", [4, 12])
class TestOpensm:
    """The real OpenSM on the twin's fabric, told by the generated files alone."""

    pytestmark = JUDGED_BY_REAL_TOOLS

    def test_comes_up_and_programs_partitions_and_routes(self, hosts: int, tmp_path: Path) -> None:
        spec = spec_of("infiniband", hosts=hosts, topology={"kind": "fat-tree", "tiers": 2})
        cluster = tmp_path / "cluster.yaml"
        cluster.write_text(yaml.safe_dump(spec.to_dict()))
        write(plan(spec), tmp_path, ("opensm",))
        with Up(cluster, tmp_path, manage=False) as up:
            conf = tmp_path / "told.conf"
            told = (tmp_path / "opensm/opensm.conf").read_text()
            conf.write_text(f"{told}force_log_flush TRUE\n")
            log = up.opensm("host-0 mlx5_0", "-F", str(conf), seconds=40)
            said = log.read_text(errors="replace")
            assert not re.search(_COMPLAINTS, said), re.search(_COMPLAINTS, said)
            assert " ERR " not in said
            engine = re.search(r"routing_engine (\S+)", (tmp_path / "opensm/opensm.conf").read_text())
            assert engine is not None
            assert f"building routing with '{engine[1]}'" in said or engine[1] in said
            self._tables(up)
            self._partitions(up, tmp_path / "opensm/partitions.conf")

    def _tables(self, up: Up) -> None:
        tables = dumped_tables(up, host="host-0 mlx5_0")
        assert tables
        for m, row in up.state.row.items():
            held = up.state.lft[row]
            assert tables[up.state.guid[m]] == {lid: int(port) for lid, port in enumerate(held) if port != 255}

    def _partitions(self, up: Up, path: Path) -> None:
        """P_Keys that smpquery reads of each adapter are those that partitions.conf gives to its GUID."""
        adapters = {up.state.port_guid[m] for m in range(len(up.state.guid)) if not up.state.is_switch[m]}
        everybody = Everybody(frozenset(adapters), frozenset(), frozenset())
        wanted = read_partitions(path, everybody)
        for name in ("host-1 mlx5_0", "host-3 mlx5_5"):
            host, device = name.split()
            guid = up.state.port_guid[up.state.find(f"{host}/{device}")]
            printed = up.tool("smpquery", "pkeys", up.lid(f"{host}/{device}"), host="host-0 mlx5_0")
            found = {int(key, 16) for key in re.findall(r"0x([0-9a-f]{4})", printed)} - {0}
            assert found == {key for one in wanted for key in one.keys_of(guid)}

"""Records of more than eight fields: each has its reason, and there shall be no more of them."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from support.source_trees import SOURCES, outlines

MOST_FIELDS = 8

# docs/architecture.md has the reasons; what is not grouped yet may only become less
LARGE = {
    "wire formats": """
        subnet/wire/header.py DirectedSmp SaMad
        subnet/wire/notice.py InformInfo
        subnet/wire/notice.py SwitchBadKeyDetails
        subnet/wire/pm.py ClassPortInfo PortCounters PortCountersExtended
        subnet/wire/sa.py PathRecord MultiPathRecord McMemberRecord ServiceRecord
        subnet/wire/smp.py NodeInfo SwitchInfo PortInfo
    """,
    "catalog entries": """
        catalog/devices.py Nic VerbsDevice
        catalog/gpus.py Gpu
        catalog/hosts.py Chip
    """,
    "sections that users write": """
        cluster/spec/cluster_section.py Routing Topology Network ExplicitIdentity ExplicitCluster
        cluster/spec/fault_section.py LinkFault
        cluster/spec/congestion_section.py CongestionControl
        cluster/spec/packet_section.py OwnDcqcn Packet
        cluster/spec/qos_section.py QosPort
        cluster/spec/spec.py Spec
        serving/config/section.py Benchmark Serving
        study/campaign/campaign_section.py Campaign
        study/jitter/jitter_sources.py Jitter
        validation/collective_series.py Series
        validation/published_data.py Row Set
        validation/turned_off.py Test
        workload/job/workload_section.py Parallel Overlap Training
    """,
    "names of other software's interfaces": """
        cluster/blueprint.py Identity
        cluster/importers/ibnetdiscover.py Port Node
        configuration/model/subnet.py PartitionLine
        live/rdma_cm/cm_abi.py Parameters
        nccl/settings/settings.py Settings
        nccl/tuning/step_costs.py CostsInside
        nccl/tuning/tuning_constants.py Rules Constants
        serving/cache/manager.py CacheLayout
        serving/scheduler/config.py SchedulerConfig
        serving/scheduler/release.py Release
        serving/scheduler/request.py Request
        subnet/manager/settings/manager_settings.py Settings
        subnet/manager/settings/partitions.py _Definition
        tools/nccl_tests/perf.py Options
        tools/perftest/perftest_options.py PerftestOptions
        verbs/adapter/completions.py WC
        verbs/adapter/work_requests.py AddressVector
        verbs/attributes/qp_attributes.py QPInitAttrEx
        verbs/pyverbs/srq.py OpsWr
        web/declarations.py JobState
        workload/model/model_blocks.py Experts
        workload/model/model_sizes.py Model
    """,
    "columns of arrays": """
        engines/channels/channel_resources.py Bound _Columns
        engines/channels/pipeline_latency.py CriticalPaths
        fabric/compile.py _Columns
        fabric/fabric.py Fabric
        fabric/host_template.py HostTemplate _Nodes
        kernel/flow/fluid.py Operations Instances State
        kernel/flow/max_min.py Flows Scratch
        kernel/nccl/channel_links.py Routes Asked Work
        kernel/packet/state/build.py Wiring
        kernel/packet/state/port_qos.py PortQos
        kernel/packet/state/state.py State
        kernel/routing/fat_tree_climb.py Groups
        kernel/routing/table_filling.py Scratch
        nccl/search/graph_search.py Channels
        program/program.py Channels Connections
        program/sends.py Sends
        routing/graph/switches.py Switches
        routing/tables.py Routes
        tools/traffic/connection_matrix.py Traffic
    """,
    "rows of a result": """
        capture/dissection.py Seen
        configuration/lint/findings.py Finding
        diagnosis/expectation/figures.py Figure
        diagnosis/finding.py Finding
        engines/base/packet_level.py PacketTotals
        report/utilisation_matrix.py Matrix
        routing/check/comparison.py Beside
        routing/check/difference.py Difference
        routing/check/judge.py Judgement
        study/campaign/campaign_study.py CampaignResult
        study/compare/comparison.py OnFabric
        study/compare/packet_measurements.py Played
        study/cost/cluster_cost.py Cost
        study/jitter/published_jitter.py Published
        subnet/manager/sweep_report.py SweepReport
        subnet/operation/changed_paths.py ChangedPath
        tools/nccl_tests/perf.py Row
        tools/perftest/perftest_loops.py Latency
    """,
    "not grouped yet": """
        base/capabilities.py Capabilities
        capture/recorder.py _Stream
        cluster/generators/topologies.py Wiring
        configuration/model/hosts.py Adapter Host
        configuration/model/subnet.py Subnet
        configuration/model/switches.py Port Switch
        configuration/readers/host_script.py _Reading
        configuration/readers/nvue.py _Reading
        engines/packet/message_flows.py MemoryPair Flow
        nccl/communicator/communicator.py Communicator
        nccl/topology/graph_types.py Graph
        nccl/topology/system.py Device
        nccl/tuning/algorithm_rules.py CommunicatorShape
        program/program.py Communication
        subnet/wire/rmpp.py Sender
        twin/managed_run.py Outage
        web/interface.py Operation
        web/jobs.py Job
        workload/job/job.py Job
        workload/layers/transformer.py Shape
    """,
}


@cache
def large_records() -> set[str]:
    """Return `file:class` of dataclasses, models and tuples with more fields than a record should have."""
    found = set()
    for path, inside in outlines().items():
        for node in inside:
            if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
                fields = [s for s in node.body if isinstance(s, ast.AnnAssign) and _is_field(s)]
                if len(fields) > MOST_FIELDS:
                    found.add(f"{path.relative_to(SOURCES)}:{node.name}")
    return found


def _is_field(statement: ast.AnnAssign) -> bool:
    return "ClassVar" not in ast.unparse(statement.annotation)


def listed(reason: str) -> set[str]:
    lines = (line.split() for line in LARGE[reason].splitlines() if line.strip())
    return {f"{file}:{name}" for file, *names in lines for name in names}


def test_a_record_has_few_fields_or_a_reason():
    unknown = large_records() - set().union(*map(listed, LARGE))
    assert unknown == set(), "group the fields by concept"


@pytest.mark.parametrize("reason", LARGE)
def test_what_has_been_grouped_is_taken_off_the_list(reason):
    assert listed(reason) <= large_records()

"""Values of `nvidia-smi -q`, as text and as XML, that mean trouble, and those of a healthy GPU."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import judged
from fabrictwin.diagnosis.readers.reading import read_text

# section, name, tag, value; sections by their depth
ROWS = (
    ("", "Product Name", "product_name", "NVIDIA H100 80GB HBM3"),
    ("GPU Reset Status/gpu_reset_status", "Reset Required", "reset_required", "No"),
    ("GPU Reset Status/gpu_reset_status", "Drain and Reset Recommended", "drain_and_reset_recommended", "No"),
    ("PCI/pci", "Replays Since Reset", "replay_counter", "0"),
    ("PCI/pci", "Replay Number Rollovers", "replay_rollover_counter", "0"),
    ("Clocks Event Reasons/clocks_event_reasons", "HW Slowdown", "clocks_event_reason_hw_slowdown", "Not Active"),
    (
        "Clocks Event Reasons/clocks_event_reasons",
        "SW Power Cap",
        "clocks_event_reason_sw_power_cap",
        "Not Active",
    ),
    ("", "Compute Mode", "compute_mode", "Default"),
    ("ECC Errors/ecc_errors", "SRAM Threshold Exceeded", "sram_threshold_exceeded", "No"),
    ("ECC Errors/ecc_errors", "Channel Repair Pending", "channel_repair_pending", "No"),
    ("Remapped Rows/remapped_rows", "Pending", "remapped_row_pending", "No"),
    (
        "Bank Remap Availability Histogram/row_remapper_histogram",
        "Max",
        "row_remapper_histogram_max",
        "2560 bank(s)",
    ),
    (
        "Bank Remap Availability Histogram/row_remapper_histogram",
        "None",
        "row_remapper_histogram_none",
        "0 bank(s)",
    ),
    ("Temperature/temperature", "GPU Current Temp", "gpu_temp", "31 C"),
    ("Temperature/temperature", "GPU T.Limit Temp", "gpu_temp_tlimit", "55 C"),
    ("Temperature/temperature", "GPU Slowdown T.Limit Temp", "gpu_temp_slow_tlimit_threshold", "-2 C"),
    ("GPU Power Readings/gpu_power_readings", "Current Power Limit", "current_power_limit", "700.00 W"),
    ("GPU Power Readings/gpu_power_readings", "Default Power Limit", "default_power_limit", "700.00 W"),
    ("Fabric/fabric", "State", "state", "Completed"),
    ("Fabric/fabric", "Status", "status", "Success"),
    ("Health/health", "Bandwidth", "bandwidth", "Full"),
    ("Health/health", "Route Recovery in progress", "route_recovery_in_progress", "False"),
    ("Health/health", "Route Unhealthy", "route_unhealthy", "False"),
)
CASES = [
    ({}, []),
    ({"Drain and Reset Recommended": "Yes"}, ["gpu-recovery"]),
    ({"Replay Number Rollovers": "12"}, ["pci-replays"]),
    ({"HW Slowdown": "Active"}, ["gpu-hot"]),
    ({"SW Power Cap": "Active"}, []),  # a GPU under load
    ({"Compute Mode": "Prohibited"}, ["gpu-busy"]),
    ({"Compute Mode": "Exclusive_Process"}, []),
    ({"SRAM Threshold Exceeded": "Yes"}, ["gpu-memory"]),
    ({"Channel Repair Pending": "Yes"}, ["gpu-memory"]),
    ({"Pending": "Yes"}, ["gpu-memory"]),
    ({"None": "1 bank(s)"}, ["gpu-memory"]),
    ({"GPU T.Limit Temp": "-3 C"}, ["gpu-hot"]),
    ({"GPU T.Limit Temp": "N/A"}, []),
    ({"Current Power Limit": "400.00 W"}, ["gpu-power"]),
    ({"Bandwidth": "Degraded"}, ["nvlink-degraded"]),
    ({"Route Unhealthy": "True"}, ["nvlink-error"]),
    ({"State": "In Progress"}, ["fabric-manager"]),
]


def text(changed: dict[str, str], gpu: str) -> str:
    found, last = f"GPU {gpu}\n", ""
    for section, name, _, value in ROWS:
        if section and section != last:
            found += f"    {section.split('/')[0]}\n"
        found += f"{'        ' if section else '    '}{name:<34}: {changed.get(name, value)}\n"
        last = section
    return found


def xml(changed: dict[str, str], gpu: str) -> str:
    found, last = f'\t<gpu id="{gpu}">\n', ""
    for section, name, tag, value in (*ROWS, ("", "", "", "")):
        if section != last:
            found += f"\t\t</{last.split('/')[1]}>\n" if last else ""
            found += f"\t\t<{section.split('/')[1]}>\n" if section else ""
        found += f"\t\t\t<{tag}>{changed.get(name, value)}</{tag}>\n" if tag else ""
        last = section
    return f"{found}\t</gpu>\n"


@pytest.mark.parametrize("form", ["text", "xml"])
@pytest.mark.parametrize(("changed", "causes"), CASES)
def test_a_value_of_one_gpu_of_two(changed: dict[str, str], causes: list[str], form: str) -> None:
    one, other = "00000000:1B:00.0", "00000000:2B:00.0"
    if form == "text":
        printed = "==============NVSMI LOG==============\n\n" + text({}, one) + text(changed, other)
    else:
        printed = (
            '<?xml version="1.0" ?>\n<nvidia_smi_log>\n'
            + xml({}, one)
            + xml(changed, other)
            + "</nvidia_smi_log>\n"
        )
    found = judged(read_text(printed), twin=False).roots
    assert [one.id for one in found] == causes
    assert all(other in one.object for one in found)

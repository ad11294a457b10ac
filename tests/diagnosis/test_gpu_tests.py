"""Tests of GPUs and of their links in one host, as nvbandwidth, CUDA's samples and gpu-burn print them."""

from __future__ import annotations

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.readers.reading import read_text

HEAD = """nvbandwidth Version: v0.5
Built from Git version: v0.5

CUDA Runtime Version: 12040
CUDA Driver Version: 12040
Driver Version: 550.54.15

node-17
Device 0: NVIDIA H100 80GB HBM3 (00000000:18:00)

"""


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def roots(text: str) -> list[tuple[str, str, str]]:
    return [(one.id, one.severity.name, one.object) for one in answer(text).roots if not one.instead_of]


def copies(test: str, *rows: str) -> str:
    """A test of nvbandwidth: a matrix whose rows are given."""
    columns = " ".join(f"{n:9d}" for n in range(len(rows[0].split()) - 1))
    body = "\n".join(rows)
    return f"{HEAD}Running {test}.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n  {columns}\n{body}\n\nSUM {test} 9.1\n"


def test_a_gpu_whose_copies_are_slow_has_a_narrow_link():
    assert roots(copies("host_to_device_memcpy_ce", " 0 55.34 55.30 13.62 55.33")) == [
        ("pci-narrow", "WARNING", "GPU 2")
    ]
    assert roots(copies("host_to_device_memcpy_ce", " 0 55.34 55.30 54.62 55.33")) == []
    # what shares a link with others, goes both ways, or is a time, is compared with nothing
    for other in ("all_to_host_memcpy_ce", "host_to_device_bidirectional_memcpy_ce", "host_device_latency_sm"):
        assert roots(copies(other, " 0 55.34 55.30 13.62 55.33")) == []


def test_all_links_that_are_slow_alike_are_asked_about():
    found = answer(copies("device_to_host_memcpy_ce", " 0 25.34 25.30"))
    assert [(one.id, one.severity.name) for one in found.findings] == [("pci-narrow", "QUESTION")]
    assert "PCIe 5 x16" in found.findings[0].expected


def test_pairs_of_one_gpu_that_are_slow_name_it():
    rows = [
        " ".join([str(a)] + ["N/A" if a == b else "90.1" if 3 in (a, b) else "276.2" for b in range(8)])
        for a in range(8)
    ]
    assert roots(copies("device_to_device_memcpy_read_ce", *rows)) == [("nvlink-degraded", "WARNING", "GPU 3")]
    # bridges between neighbours, and the host between others: two kinds of pairs
    rows = [
        " ".join([str(a)] + ["N/A" if a == b else "90.1" if a // 2 == b // 2 else "20.2" for b in range(4)])
        for a in range(4)
    ]
    assert roots(copies("device_to_device_memcpy_read_ce", *rows)) == []


def test_a_pattern_that_comes_back_wrong_is_an_error():
    text = copies("device_to_device_memcpy_read_ce", " 0 N/A 276.2", " 1 276.2 N/A")
    assert roots(f"{text} Invalid value when checking the pattern at 0x7f2b4c000000\n")[0][:2] == (
        "gpu-computes-wrong",
        "ERROR",
    )


def sample(rate: float) -> str:
    return (
        "[CUDA Bandwidth Test] - Starting...\nRunning on...\n\n Device 0: NVIDIA A100-SXM4-40GB\n Quick Mode\n\n"
        f" Host to Device Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n   Transfer Size (Bytes)\tBandwidth(GB/s)\n"
        f"   32000000\t\t\t{rate}\n\n Device to Device Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n"
        "   Transfer Size (Bytes)\tBandwidth(GB/s)\n   32000000\t\t\t1120.7\n\nResult = PASS\n"
    )


def test_cudas_sample_is_held_against_the_gpus_link():
    assert [one.id for one in answer(sample(24.8)).findings] == []
    assert [one.id for one in answer(sample(6.3)).findings] == ["pci-narrow"]


def burn(errors: str, last: str, *verdicts: str, rates: tuple[int, ...] = (13211, 13180, 13190)) -> str:
    """Output of gpu-burn for three GPUs: a line of progress, and the verdicts at the end."""
    done = " - ".join(f"222 ({rate} Gflop/s)" for rate in rates)
    end = "".join(f"\tGPU {gpu}: {verdict}\n" for gpu, verdict in enumerate(verdicts))
    return (
        "Using compare file: compare.ptx\nBurning for 60 seconds.\n"
        f"\r10.0%  proc'd: {done}   errors: 0 - 0 - 0   temps: 44 C - 43 C - -- "
        f"\r100.0%  proc'd: {done}   errors: {errors}   temps: 64 C - 63 C - {last} \n"
        f"Killing processes with SIGTERM (soft kill)\ndone\n\nTested 3 GPUs:\n{end}"
    )


def test_gpu_burn_names_who_computed_wrongly_died_or_is_slow():
    assert roots(burn("0 - 0 - 0 ", "64 C", "OK", "OK", "OK")) == []
    wrong = roots(burn("0 - 1831  (WARNING!) - 0 ", "64 C", "OK", "FAULTY", "OK"))
    assert wrong == [("gpu-computes-wrong", "ERROR", "GPU 1")]
    died = roots(burn("0 - 0 - -1  (DIED!)", "64 C", "OK", "OK", "FAULTY"))
    assert died == [("gpu-computes-wrong", "ERROR", "GPU 2")]
    slow = roots(burn("0 - 0 - 0 ", "91 C", "OK", "OK", "OK", rates=(13211, 13180, 7111)))
    assert slow == [("gpu-slow", "WARNING", "GPU 2")]

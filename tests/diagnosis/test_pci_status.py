"""`lspci -vvv` row by row, with the flags that tell of trouble and those of every healthy host; links of two lanes."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.readers.reading import read_text

NIC = "Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]"
GPU = "3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)"
BRIDGE = "PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])"
HEALTHY = {
    "DevCap": "MaxPayload 512 bytes, PhantFunc 0, Latency L0s unlimited, L1 unlimited\n\t\t\tExtTag+ AttnBtn- AttnInd- RBE+",
    "DevCtl": "CorrErr- NonFatalErr- FatalErr- UnsupReq-\n\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-\n"
    "\t\t\tMaxPayload 256 bytes, MaxReadReq 4096 bytes",
    "DevSta": "CorrErr+ NonFatalErr+ FatalErr- UnsupReq+ AuxPwr- TransPend-",
    "LnkCap": "Port #0, Speed 32GT/s, Width x16, ASPM not supported\n\t\t\tClockPM- Surprise- LLActRep- BwNot-",
    "LnkSta": "Speed 32GT/s, Width x16\n\t\t\tTrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-",
    "DevCap2": "Completion Timeout: Range ABC, TimeoutDis+ NROPrPrP- LTR-\n\t\t\t 10BitTagComp+ 10BitTagReq+ OBFF Not Supported",
    "DevCtl2": "Completion Timeout: 65ms to 210ms, TimeoutDis- LTR- 10BitTagReq-",
    "UESta": "DLP- SDES- TLP- FCP- CmpltTO- CmpltAbrt- UnxCmplt- RxOF- MalfTLP- ECRC- UnsupReq+ ACSViol-",
    "UEMsk": "DLP- SDES- TLP- FCP+ CmpltTO+ CmpltAbrt- UnxCmplt+ RxOF- MalfTLP- ECRC- UnsupReq- ACSViol-",
    "UESvrt": "DLP+ SDES+ TLP- FCP+ CmpltTO- CmpltAbrt- UnxCmplt- RxOF+ MalfTLP+ ECRC+ UnsupReq- ACSViol-",
    "CESta": "RxErr+ BadTLP- BadDLLP+ Rollover- Timeout- AdvNonFatalErr+",
    "CEMsk": "RxErr- BadTLP- BadDLLP- Rollover+ Timeout+ AdvNonFatalErr+",
    "ACSCtl": "SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-",
}  # fmt: skip


def device(bus: str, kind: str, driver: str = "", modules: str = "", **changed: str) -> str:
    rows = "".join(f"\t\t{name}:\t{value}\n" for name, value in (HEALTHY | changed).items())
    text = f"{bus}:00.0 {kind}\n\tControl: I/O- Mem+ BusMaster+\n{rows}"
    text += f"\tKernel driver in use: {driver}\n" if driver else ""
    return text + (f"\tKernel modules: {modules}\n" if modules else "") + "\n"


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def told(text: str) -> list[tuple[str, str]]:
    return [(one.id, one.severity.name) for one in answer(text).roots if one.severity.name != "NOTE"]


WELL = (
    device("17", BRIDGE)
    + device("18", NIC, "mlx5_core", "mlx5_core")
    + device("19", GPU, "nvidia", "nouveau, nvidia")
)


def test_a_healthy_host_has_flags_that_mean_nothing():
    assert (answer(WELL).verdict, told(WELL)) == ("clean", [])


@pytest.mark.parametrize(
    ("kind", "changed", "found"),
    [
        (GPU, {"UESta": HEALTHY["UESta"].replace("MalfTLP-", "MalfTLP+")}, [("pci-errors", "WARNING")]),
        (NIC, {"UESta": HEALTHY["UESta"].replace("DLP-", "DLP+")}, [("pci-errors", "WARNING")]),
        (NIC, {"UESta": HEALTHY["UESta"].replace("CmpltTO-", "CmpltTO+")}, [("pci-errors", "QUESTION")]),
        (BRIDGE, {"UESta": HEALTHY["UESta"].replace("RxOF-", "RxOF+")}, [("pci-errors", "QUESTION")]),
        (GPU, {"DevSta": HEALTHY["DevSta"].replace(" FatalErr-", " FatalErr+")}, [("pci-errors", "QUESTION")]),
        (GPU, {"CESta": HEALTHY["CESta"].replace("Rollover-", "Rollover+")}, [("pci-replays", "QUESTION")]),
        (BRIDGE, {"DpcSta": "Trigger+ Reason:01 INT- RPBusy- TriggerExt:00"}, [("pci-errors", "WARNING")]),
        (BRIDGE, {"SltSta": "Status: AttnBtn- PowerFlt+ MRL- CmdCplt- PresDet+"}, [("pci-power", "QUESTION")]),
        (NIC, {"DevCtl": HEALTHY["DevCtl"].replace("ExtTag+", "ExtTag-")}, [("read-request", "QUESTION")]),
        (NIC + " Virtual Function", {"DevCtl": HEALTHY["DevCtl"].replace("ExtTag+", "ExtTag-")}, []),
        (NIC, {"DevCtl": HEALTHY["DevCtl"].replace("MaxPayload 256", "MaxPayload 128")}, []),
        (BRIDGE, {"ACSCtl": HEALTHY["ACSCtl"].replace("ReqRedir-", "ReqRedir+")}, [("acs-redirects", "WARNING")]),
        ("VGA compatible controller: ASPEED Technology, Inc.", {"UESta": "DLP+ MalfTLP+"}, []),
    ],
)  # fmt: skip
def test_a_flag_that_tells(kind: str, changed: dict[str, str], found: list[tuple[str, str]]):
    assert told(WELL + device("2a", kind, **changed)) == found


@pytest.mark.parametrize(
    ("driver", "found"),
    [("nouveau", [("gpu-driver", "ERROR")]), ("", [("gpu-driver", "ERROR")]), ("vfio-pci", [])],
)
def test_a_gpu_whose_driver_is_another_or_none(driver: str, found: list[tuple[str, str]]):
    assert told(WELL + device("2a", GPU, driver, "nouveau, nvidia_drm, nvidia")) == found


def test_a_smallest_payload_is_a_note():
    small = device("2a", NIC, DevCtl=HEALTHY["DevCtl"].replace("MaxPayload 256", "MaxPayload 128"))
    assert [(one.id, one.seen) for one in answer(small).roots] == [("read-request", "MaxPayload 128 bytes")]


def fabric(speed: str, width: int, far: str) -> str:
    """A switch of eight links as ibnetdiscover lists them, one of another width."""
    text = 'Switch\t40 "S-0001"\t\t# "leaf-1" enhanced port 0 lid 1 lmc 0\n'
    for port in range(1, 9):
        other = far if port == 8 else f'"H-000{port}"[1](000{port})'
        text += (
            f'[{port}]\t{other} \t\t# "node-{port} mlx5_0" lid {port + 9} {width if port == 8 else 4}x{speed}\n'
        )
    return text


@pytest.mark.parametrize(
    ("speed", "far", "found"),
    [
        ("EDR", '"H-0009"[1](0009)', [("link-narrow", "WARNING")]),
        ("NDR", '"S-0009"[3]', [("link-narrow", "WARNING")]),
        ("NDR", '"H-0009"[1](0009)', [("link-narrow", "QUESTION")]),
    ],
)
def test_a_link_of_two_lanes_among_those_of_four(speed: str, far: str, found: list[tuple[str, str]]):
    assert told(fabric(speed, 2, far)) == found
    assert told(fabric(speed, 4, far)) == []

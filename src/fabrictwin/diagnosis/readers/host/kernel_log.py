"""Kernel messages (dmesg, journalctl -k, /dev/kmsg) and the fabric manager's log.

Lines are told by what they say, not by how they begin: timestamps differ between dmesg, dmesg -T, --decode, kmsg's
`6,3965,206764310,-;` and syslog. Sources: NVIDIA, "Xid errors" and fabric manager user guide; kernel drivers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fabrictwin.diagnosis.evidence import Place, Sink, Subject
from fabrictwin.diagnosis.mechanisms.table import mechanism_of
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = (
    r"NVRM: Xid|NVRM: GPU|SXid|nvidia-peermem|nvidia_peermem|nv_peer_mem|mlx5_core|mlx5_ib|segfault at|"
    r"^\d+,\d+,\d+,-;|^\[\s*\d{1,8}\.\d{6}\] |detected NVSwitch|\[tid \d+\]|nvidia-nvswitch\d*:|AER: |pcieport |"
    r"^(?:kern|daemon|user)\s*:\w+\s*:|DMAR: |AMD-Vi: |oom-kill|Out of memory: Killed|PCIe Bus Error: |"
    r"systemd-networkd\[\d+\]: \S+: (?:[Ll]ost|[Gg]ained) carrier|NIC Link is (?:Up|Down)|"
    r"\w: Link is (?:Up|Down|up|down)\b|"
    r"link status (?:definitely|up|down)|running without any active interface|"
    r"nv(?:idia)?-fabricmanager(?:-start\.sh)?\[|nvidia-fabricmanager\.service|"
    r"[Ff]abric ?[Mm]anager .*(?:version|match|failed)|Failed to start NVIDIA fabric manager"
)
OPENS_MANAGER = r"^\[[^\]]+\] \[[A-Z]+\] \[tid \d+\]"  # the fabric manager's own log, and the IMEX daemon's
# interfaces that exist on every host and lead nowhere else
LOCAL_INTERFACE = re.compile(
    r"^(?:lo|docker\d*|virbr\d*|br-[0-9a-f]+|veth\w+|cni\d*|cali\w+|flannel\S*|kube-\S*|podman\d*|lxc\w*)$"
)

# of which one stands in each line that leaves something here
MARKS = (
    "Xid", "SXid", "NVSwitch", "peer", "segfault", "mlx5", "carrier", "ink is ", "link status", "running without",
    "available PCIe", "] type 0", "IOMMU", "version", "rror", "Killed", "The NVIDIA GPU", "fallen off the bus",
    "fabricmanager", "Failed to start", "fault", "00000030:", "[ERROR]", "[FATAL]", "IMEX",
)  # fmt: skip
_RELEVANT = (("10de", "03"), ("1002", "03"), ("1002", "12"), ("15b3", "02"))  # maker and class: GPUs, adapters
_DETAIL = re.compile(r"\s*(?:\[ ?\d+\]|device \[)")  # rows below an error of PCIe
_OF_SEVERAL_LINES = frozenset(("The NVIDIA GPU", "fallen off the bus", "IMEX", "link status"))

_BONDED = re.compile(
    r"(?:\(slave ([\w.@-]+)\): )?link status (definitely )?(up|down)(?: for interface ([\w.@-]+))?"
)

# the last row of mlx5_ib's dump of a completion: byte 54 is the vendor's syndrome, byte 55 the syndrome
_CQE = re.compile(r"\b00000030: (?:[0-9a-f]{2} ){6}([0-9a-f]{2}) ([0-9a-f]{2})(?: [0-9a-f]{2}){8}\b")

_Rule = tuple[str, re.Pattern[str], Callable[[re.Match[str], str], None]]


class KernelLog(LineReader):
    """Reads messages of kernels and of the fabric manager."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._lost: dict[str, Place] = {}  # links of bonds that went down, while they are
        self._speakers: dict[str, str] = {}  # by links: whose words on them are heard
        self._named = ""  # the GPU that a message of several lines began with
        self._last: dict[Subject, tuple[str, Place]] = {}  # what each link did last, where it said so
        self._functions: set[str] = set()  # GPUs and adapters that the bus found
        self._is_imex = False  # the log is of the IMEX daemon
        self.is_idle = False  # the last line left nothing here, and no other of its shape will
        self.is_repeatable = True  # what the last line left lies in itself alone
        self._rules: tuple[_Rule, ...] = (*self._of_devices(), *self._of_hosts())

    def _of_devices(self) -> tuple[_Rule, ...]:
        """Messages of GPUs, switches, adapters and links: a literal, what it stands in, and what takes it."""
        return (
            ("Xid", re.compile(r"(?<!S)Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?"), self._xid),
            ("SXid", re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),? ?(.*)"), self._sxid),
            (
                "NVSwitch",
                re.compile(r"detected NVSwitch (non-fatal|fatal) error (\d+).*?pci bus id (\S+)(.*)"),
                self._switch,
            ),
            ("peer", re.compile(r"((?:nvidia[-_]peermem|nv_peer_mem)\S*) ?(.*)"), self._peermem),
            ("segfault", re.compile(r"(\S+?)\[\d+\]: segfault at .* in (\S+?)\["), self._segfault),
            ("mlx5", re.compile(r"mlx5_(?:core|ib) ([0-9a-f:.]+).*?: (.*)"), self._mlx5),
            ("carrier", re.compile(r"networkd\[\d+\]: (\S+): ([Ll]ost|[Gg]ained) carrier"), self._carrier),
            ("ink is ", re.compile(r"([\w.@-]+):? (?:NIC )?Link is (Up|Down|up|down)\b"), self._carrier),
            ("link status", _BONDED, self._bonded),
            ("running without", re.compile(r"(\S+): now running without any active interface"), self._bond),
        )

    def _of_hosts(self) -> tuple[_Rule, ...]:
        """Messages of buses, memory and daemons."""
        return (
            (
                "available PCIe",
                re.compile(
                    r"(?:\b(pci) )?([0-9a-f:.]+)(?: [a-z]\S*)?: ([\d.]+) Gb/s available PCIe bandwidth, "
                    r"limited by (\S+ \S+ \S+ \S+) link at (\S+) \(capable of ([\d.]+)"
                ),
                self._narrow,
            ),
            (
                "] type 0",
                re.compile(r"\bpci ([0-9a-f:.]+): \[(\w{4}):\w{4}\] type \d\d class 0x(\w\w)"),
                self._function,
            ),
            ("IOMMU", re.compile(r"(?:Default domain type: (\w+)|IOMMU enabled)"), self._iommu),
            (
                "version",
                re.compile(
                    r"(?i)(fabric manager.*version.*(?:mismatch|do(?:es)?(?: not|n't) match|incompatible).*)"
                ),
                self._mismatch,
            ),
            (
                "rror",
                re.compile(
                    r"([0-9a-f]{4}:[0-9a-f:.]+):? .*(?:AER|PCIe Bus Error): (.*)|"
                    r"AER: (.*(?:Uncorrect|Correct)\S* .*)"
                ),
                self._aer,
            ),
            ("Killed", re.compile(r"Out of memory: Killed process \d+ \((\S+)\)"), self._killed),
            ("The NVIDIA GPU", re.compile(r"The NVIDIA GPU ([0-9a-f]{4}:[0-9a-f:.]+)\s*$"), self._gpu),
            ("fallen off the bus", re.compile(r"(fallen off the bus)"), self._fallen),
            (
                "fabricmanager",
                re.compile(r"(fabricmanager\S* (?:failed because.*)|NVSwitch driver failed with error.*)"),
                self._manager,
            ),
            (
                "fabricmanager",
                re.compile(
                    r"(fabricmanager\.service: .*(?:FAILURE|failed|Failed).*|FABRIC\w+ has an invalid value)"
                ),
                self._manager,
            ),
            ("Failed to start", re.compile(r"(Failed to start NVIDIA fabric manager.*)"), self._manager),
            (
                "fault",
                re.compile(
                    r"DMAR: \[DMA (?:Read|Write).*Request device \[?([0-9a-f:.]+)|"
                    r"IO_PAGE_FAULT (?:device|domain)=(\S+)"
                ),
                self._io_fault,
            ),
            ("00000030:", _CQE, self._cqe),
            ("[ERROR]", re.compile(r"\[ERROR\] \[tid \d+\] (.*)"), self._daemon),
            ("[FATAL]", re.compile(r"\[FATAL\] \[tid \d+\] (.*)"), self._daemon),
            ("IMEX", re.compile(r"\b(IMEX)\b"), self._imex),
        )

    def line(self, text: str) -> bool:
        """Take a line; always, since any line may stand in a kernel's log."""
        self.is_idle = self.is_repeatable = True
        for mark, pattern, take in self._rules:
            if mark in text:
                self.is_idle = False
                self.is_repeatable = mark not in _OF_SEVERAL_LINES
                found = pattern.search(text)
                if found is not None:
                    take(found, text)
                    return True
        return True

    def _xid(self, found: re.Match[str], _text: str) -> None:
        # a channel that was torn down names the error that it was torn down for
        earlier = re.search(r"caused by previous Xid (\d+)", found[3] or "")
        self.sink.add("xid", int((earlier[1] if earlier else found[2])[:6]), Subject(device=f"GPU {found[1]}"))

    def _gpu(self, found: re.Match[str], _text: str) -> None:
        self._named = found[1]

    def _sxid(self, found: re.Match[str], text: str) -> None:
        link = re.search(r"[Ll]ink (\d+)|port (\d+)", found[3])
        fatal = "non-fatal" not in text.lower() and "fatal" in text.lower()
        port = (link[1] or link[2]) if link else ""
        self.sink.add("sxid", (int(found[2][:6]), fatal), Subject(device=f"NVSwitch {found[1]}", port=port))

    def _switch(self, found: re.Match[str], _text: str) -> None:
        port = re.search(r"port (\d+)", found[4])
        about = Subject(device=f"NVSwitch {found[3]}", port=port[1] if port else "")
        self.sink.add("sxid", (int(found[2][:6]), found[1] == "fatal"), about)

    def _peermem(self, found: re.Match[str], text: str) -> None:
        said = text[found.start() :]
        if "module verification" in said or "loading out-of-tree" in said:
            self.sink.add("peermem.loaded", True)  # a module that nobody signed is loaded all the same
        elif re.search(r"(?i)invalid context|error|failed|disagrees|Unknown symbol|Invalid argument", said):
            self.sink.add("peermem.error", re.sub(r"0x[0-9a-f]+|\d{4,}", "#", said)[:160])

    def _segfault(self, found: re.Match[str], _text: str) -> None:
        self.sink.add("segfault", (found[1].split(" ")[-1], found[2]))

    def _mlx5(self, found: re.Match[str], text: str) -> None:
        said, about = found[2], Subject(device=found[1].rstrip(":"))
        port = re.search(r"(\S+): Link (up|down)|Port: \d+ Link (UP|DOWN)", said + " " + text)
        module = re.search(r"Port module event(\[error\])?: module (\d+), (.*)", text)
        if module is not None and (module[1] or re.search(r"(?i)error|high temp|bad|exceeded", module[3])):
            self.sink.add("mlx5.module", module[0][:160], about)
        elif module is not None:
            self.sink.add("mlx5.cable", module[3][:60], about)
        elif port is not None:
            self._event((port[2] or port[3] or "").lower(), about)
        elif (
            re.search(
                r"(?i)health|fatal|fw_fatal|recover|timeout|failed|err(?:or)?\b|corrupt|bad system state", said
            )
            and not _DETAIL.match(said)
            and mechanism_of(text) is None
        ):
            self.sink.add("mlx5.error", re.sub(r"0x[0-9a-f]+|\d{3,}", "#", said)[:160], about)

    def _carrier(self, found: re.Match[str], _text: str) -> None:
        # interfaces of containers and bridges come and go with them
        if not LOCAL_INTERFACE.match(found[1]):
            self._link(found[1], "down" if found[2].lower() in ("lost", "down") else "up", "driver")

    def _link(self, name: str, state: str, speaker: str) -> None:
        """Keep what a link did; a driver and a bond say the same of one link, and the first of them is heard."""
        if self._speakers.setdefault(name, speaker) == speaker:
            self._event(state, Subject(device=name))

    def _event(self, state: str, about: Subject) -> None:
        self.sink.add("link.event", state, about)
        self._last[about] = (state, self.sink.here())

    def _bonded(self, found: re.Match[str], _text: str) -> None:
        name = (found[1] or found[4] or "").rstrip(".")
        if not name:
            return
        self._link(name, found[3], "bond")
        if found[3] == "up":
            self._lost.pop(name, None)
        elif found[2] is not None:  # definitely: the bond goes on without it
            self._lost.setdefault(name, self.sink.here())

    def _bond(self, found: re.Match[str], _text: str) -> None:
        self.sink.add("bond.dead", True, Subject(device=found[1]))

    def _fallen(self, _found: re.Match[str], text: str) -> None:
        bus = re.search(r"GPU (?:at )?(?:PCI:)?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\b", text)
        name = bus[1] if bus else self._named
        self.sink.add("xid", 79, Subject(device=f"GPU {name}" if name else "a GPU"))

    def _cqe(self, found: re.Match[str], _text: str) -> None:
        self.sink.add("verbs.failed", f"error cqe: syndrome 0x{found[2]}, vendor's 0x{found[1]}")

    def _io_fault(self, found: re.Match[str], _text: str) -> None:
        self.sink.add("iommu.fault", True, Subject(device=found[1] or found[2]))

    def _narrow(self, found: re.Match[str], _text: str) -> None:
        # what the bus says as it finds a device: links are not trained yet, and most devices do not matter here
        if found[1] and ("2.5 GT/s" in found[4] or found[2] not in self._functions):
            return
        value = (float(found[3]), float(found[6]), found[4], bool(found[1]))
        self.sink.add("pci.narrow", value, Subject(device=found[2]))

    def _function(self, found: re.Match[str], _text: str) -> None:
        if (found[2], found[3]) in _RELEVANT:
            self._functions.add(found[1])

    def _iommu(self, found: re.Match[str], _text: str) -> None:
        self.sink.add("iommu", found[1] or "enabled")

    def _mismatch(self, found: re.Match[str], _text: str) -> None:
        self.sink.add("fabricmanager.version", found[1][:160])

    def _aer(self, found: re.Match[str], _text: str) -> None:
        said = found[2] or found[3] or ""
        serious = bool(re.search(r"(?i)uncorrect", said))
        about = Subject(device=(found[1] or "").rstrip(":"))
        several = 2 if "Multiple" in said else 1  # since the last message
        self.sink.add("aer", "uncorrectable" if serious else "correctable", about, count=several)

    def _killed(self, found: re.Match[str], _text: str) -> None:
        self.sink.add("oom", found[1])

    def _manager(self, found: re.Match[str], _text: str) -> None:
        self.sink.add("fabricmanager.error", re.sub(r"0x[0-9a-f]+|\d{4,}", "#", found[1])[:160])

    def _imex(self, _found: re.Match[str], _text: str) -> None:
        self._is_imex = True

    def _daemon(self, found: re.Match[str], text: str) -> None:
        """Take an error of the fabric manager or of IMEX, whose lines look alike."""
        if self._is_imex or re.search(r"(?i)imex", found[1]):
            self.sink.add("imex.error", re.sub(r"0x[0-9a-f]+|\d{4,}", "#", found[1])[:160])
        else:
            self._manager(found, text)

    def close(self) -> None:
        """Keep what links did last, and say that a log was read: no message of trouble is evidence too."""
        for name, place in self._lost.items():
            self.sink.add("bond.lost", True, Subject(device=name), place=place)
        for about, (state, place) in self._last.items():
            self.sink.add("link.last", state, about, place=place)
        self.sink.add("kernel.read", True, place=Place(self.sink.file, 0))

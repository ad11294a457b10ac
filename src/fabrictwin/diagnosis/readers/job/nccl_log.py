"""NCCL's log, releases 2.18 to 2.30, with the lines of all ranks interleaved.

A line belongs to the process and thread that its prefix names (`host:pid:tid [device] NCCL INFO ...`); what
launchers put before it is passed over. Messages are told apart by their first word: a line costs a look-up.
Wording by release: the public sources of NCCL (src/init.cc, bootstrap.cc, graph/, transport/, transport/net_ib).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fabrictwin.diagnosis.evidence import Place, Sink, Subject
from fabrictwin.diagnosis.mechanisms.table import HARMLESS, mechanism_of
from fabrictwin.diagnosis.readers.decisive_lines import has_trouble
from fabrictwin.diagnosis.readers.line_prefixes import without_colours, without_prefixes
from fabrictwin.diagnosis.readers.line_reader import LineReader

_HEAD = re.compile(r"([A-Za-z0-9_.-]+):(\d{1,9}):(\d{1,9}) \[(-?\d{1,4})\]")
# what launchers leave where the host was cut off: `[3] `, `[0] include/shm.h:28`, nothing
_NAMELESS = re.compile(r"^[\s\[\]\w<>:,.-]{0,60}?(?:(?<!\w)\[(-?\d{1,4})\])?\s*(?:[\w./-]+\.(?:cc|cu|h|c):\d+)?$")
_SOURCE = re.compile(r"([\w./-]+\.(?:cc|cu|h|c)):\d+\s*$")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
FIRST_OF_FIVE_DIGITS = 20  # PyTorch before 1.11 took 21104, which is 2.11.4, apart as 21.1.4
_INIT = re.compile(
    r"rank (\d+) n[rR]anks (\d+)(?: cudaDev (\d+))?.*?(?: busId (\w+))?(?: commId (0x\w+))?(?: commHash \w+)? - "
    r"Init (START|COMPLETE)"
)
_PLACED = re.compile(
    r"comm (0x\w+) rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank (\d+) MNNVL (\d)"
)
_COUNTS = re.compile(r"(\d+) coll channels, (?:(\d+) collnet channels, )?(\d+) nvls channels, (\d+) p2p channels")
_DEVICE = re.compile(r"\[(\d+)\]([\w.+-]+):(\d+)/(IB|RoCE|\w+)")
# plugins write it small and name a way: `GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_0`. Their "enabled" is
# of the adapter alone: hosts whose GPU has no memory of its own have it too, and go through the host's
_GDR_HCA = re.compile(r"GPU Direct RDMA (?:\(\w+\) )?(?:(Enabled)|[Dd]isabled) for HCA (\d+) '([^'\s]*)")
_SPEED = re.compile(r"speed change detected: (\d+) -> (\d+) Mbps")
_GDR_FAR = re.compile(
    r"GPU Direct RDMA Disabled for (?:GPU|rank) (\S+) */? *HCA (\S+) \(distance (\d+) (?:>=|>) (\d+)\)"
)
_MADE = re.compile(r"name=(\S+) speed=(\d+) ndevs=(\d+)")
_CHANNEL = re.compile(
    # old releases say Ring
    r"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(send|receive)\])? "
    r"via (NET/[\w ]+/\d+|[^\s(]+)"
    # a proxy on another GPU of the host sends (PXN): its rank stands between
    r"(?:\(\d+\))?([\w/]*)"
)
_SET = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.*)")
_PATH = re.compile(r"NET/[\w-]+ \(\d+/[\d.]+/(\w+)\)")
_NVL = re.compile(r"\+ (NVL|PCI)\[([\d.]+)\] - (GPU|NVS|NIC|PCI)/?(\S*)")
# of a device without a port above it: the parent's link, which sysfs has of ports alone
_NO_PORT = re.compile(r"could not read /sys/devices/\S*/([0-9a-f:]+\.\d)/\.\./max_link_(?:speed|width)")
_CALL = re.compile(
    r"(\w+): opCount ([0-9a-f]+) sendbuff \S+ recvbuff \S+ (?:acc \S+ )?count (\d+) datatype (\d+) op (\d+) "
    r"root (-?\d+) comm (0x\w+) \[nranks=(\d+)\]"
)
_ALGO = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
# what a call of NCCL returned on its way up: `transport/net_ib.cc:282 -> 2`
_RETURNED = re.compile(r"([\w./-]+\.(?:cc|cu|h|c)):\d+ -> (\d+)")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b\d+\b")
TELLING = 0.8  # of a mechanism, from where on a message that is no warning counts
NEWEST = 99  # minor release, of wording that stays
KEPT_CALLS = 64  # of each process and communicator, the last ones
# of which so many are kept apart, in logs of any size
MOST_THREADS, MOST_PROCESSES, MOST_WAYS, MOST_CALLERS = 100_000, 400_000, 200_000, 100_000

VERBS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send", "Recv", "AlltoAll")


@dataclass(slots=True)
class Thread:
    """A thread that writes: its host, process, device, and the rank once it has said so."""

    host: str
    pid: str
    device: str
    rank: int = -1
    gpu: str = ""  # whose links the print of the system is at
    switch: tuple[str, float] = ("", 0.0)  # the PCI switch that it is behind, and its own link's rate
    subject: Subject = field(default=Subject())


class NcclLog(LineReader):
    """Reads lines of NCCL's log."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._threads: dict[str, Thread] = {}
        self._processes: dict[tuple[str, str, str], int] = {}  # host, process, device or communicator: its rank
        self._ways: dict[tuple[str, int, str, str], tuple[int, int, Place]] = {}
        # host, process, communicator, rank of the thread: the last calls, and the lines that they stood in
        self._said: dict[tuple[str, str, str, int], deque[tuple[int, str]]] = {}
        self._by_word: dict[str, Callable[[Thread, str], None]] = {
            "Channel": self._channel,
            "Ring": self._channel,
            "NET/IB": self._net_ib,
            "NET/IB:": self._net_ib,
            "NET/Socket": self._net_socket,
            "NET/OFI": self._ofi,
            "NET/Plugin": self._plugin,
            "NET/Plugin:": self._plugin,
            "Using": self._using,
            "Bootstrap": self._bootstrap,
            "Bootstrap:": self._bootstrap,
            "GPU": self._far,
            "comm": self._comm,
            "Connected": self._connected,
            "NVLS": self._nvls,
            "Pattern": self._pattern,
            "+": self._link,
            "===": self._system,
            "Topology": self._no_port,
            "NCCL": self._version,
            "Attribute": self._attribute,
            "Initialized": self._initialized,
            "Init": self._timings,
            "Failed": self._failed,
        }
        self._by_word |= {f"{verb}:": self._call for verb in VERBS}

    def version_line(self, text: str) -> bool:
        """Take the line that names the release and no rank; False where it is none."""
        found = _VERSION.search(text)
        if found is None:
            return False
        self.sink.add("nccl.version", _release(found[1]))
        # a framework's message in one line goes on to who reads those
        return "rror: " not in text and "NCCL error" not in text

    def line(self, text: str) -> bool:
        """Take a line that holds ` NCCL `; False where it is none of NCCL's."""
        text = without_colours(text)
        if text.startswith("NCCL "):
            text = f" {text}"  # a log without its heads
        for mark in (" NCCL INFO ", " NCCL WARN ", " NCCL TRACE ", " NCCL ABORT "):
            at = text.find(mark)
            if at >= 0:
                break
        else:
            return self.version_line(text)
        head, message = text[:at], text[at + len(mark) :]
        source = ""
        if mark == " NCCL WARN " and head[-1:] != "]":
            found = _SOURCE.search(head)
            source = found[1] if found is not None else ""
            head = head[: head.rfind("]") + 1] or head  # the source file stands between
        thread = self._threads.get(head) or self._thread(head)
        if thread is None:
            return False
        message = message.strip()
        if mark == " NCCL WARN " and source.startswith("ras/"):
            return True  # its RAS serves people who ask: the job runs without
        if mark == " NCCL WARN ":
            self._warning(thread, message, source)
            return True
        word = message.split(" ", 1)[0]
        take = self._by_word.get(word)
        if take is not None:
            take(thread, message)
        elif message[:1].isdigit():
            self._counts(thread, message)
        else:
            self._rare(thread, message)
        return True

    def _thread(self, head: str) -> Thread | None:
        heads = _HEAD.findall(head[-400:])
        if heads:
            host, pid, tid, device = heads[-1]
        else:
            nameless = _NAMELESS.match(without_prefixes(f"{head[-400:]} "))
            if nameless is None:
                return None
            host, pid, tid, device = "", "", "", nameless[1] or ""
        key = f"{host}:{pid}:{tid} [{device}]"
        thread = self._threads.get(key)
        if thread is None:
            rank = self._processes.get((host, pid, device), -1)
            thread = Thread(host, pid, device, rank, subject=Subject(host, rank))
            if len(self._threads) >= MOST_THREADS:
                self._threads.clear()
            self._threads[key] = thread
        self._threads[head] = thread
        return thread

    def _is_rank(self, thread: Thread, rank: int, communicator: str = "") -> None:
        if thread.rank != rank:
            thread.rank, thread.subject = rank, Subject(thread.host, rank)
        if len(self._processes) >= MOST_PROCESSES:
            return
        self._processes.setdefault((thread.host, thread.pid, thread.device), rank)
        if communicator:
            self._processes[thread.host, thread.pid, communicator] = rank

    # -- messages by their first word -----------------------------------------------------------------------------

    def _channel(self, thread: Thread, message: str) -> None:
        found = _CHANNEL.match(message)
        if found is None:
            return
        source, target, side, way, rest = found.groups()
        way += rest
        rank = int(target) if side == "receive" else int(source)
        if thread.rank < 0:
            self._is_rank(thread, rank)
        key = (thread.host, rank, side or "", way)
        known = self._ways.get(key)
        if known is None and len(self._ways) < MOST_WAYS:
            self.sink.text = message
            self._ways[key] = (1, int(target if rank == int(source) else source), self.sink.here())
        elif known is not None:
            self._ways[key] = (known[0] + 1, known[1], known[2])

    def _net_ib(self, thread: Thread, message: str) -> None:
        add = self.sink.add
        if "Using" in message and "]" in message:
            names = tuple(f"{name}:{port}/{kind}" for _, name, port, kind in _DEVICE.findall(message))
            add("nccl.hcas", names, Subject(thread.host))
            return
        gdr = _GDR_HCA.search(message)
        if "(distance" in message:
            self._far(thread, message)
        elif gdr is not None:
            add("nccl.gdr", gdr[1] is not None, Subject(thread.host, device=gdr[3]))
        elif "No device found" in message:
            add("nccl.no-device", True, Subject(thread.host))
        elif "Made virtual device" in message:
            made = _MADE.search(message)
            if made is not None:
                add("nccl.hca-speed", (int(made[2]), int(made[3])), Subject(thread.host, device=made[1]))
        elif "async" in message or "ompletion" in message:
            self._warning(thread, message)
        elif (changed := _SPEED.search(message)) is not None and int(changed[2]) < int(changed[1]):
            self._warning(thread, f"link slower: {message}")
        elif "provider=" in message:
            speed = re.search(r"\[\d+\] ([\w.-]+):\S*?/(IB|RoCE).*?speed=(\d+)", message)
            if speed is not None:
                add("nccl.hca-speed", (int(speed[3]), 1), Subject(thread.host, device=speed[1]))

    def _net_socket(self, thread: Thread, message: str) -> None:
        if "Using" in message:
            names = tuple(re.findall(r"\[\d+\]([\w.@-]+):", message))
            self.sink.add("nccl.sockets", names, Subject(thread.host))

    def _ofi(self, thread: Thread, message: str) -> None:
        found = re.search(r"Selected [Pp]rovider is (\S+)", message)
        if found is not None:
            self.sink.add("nccl.ofi-provider", found[1].rstrip(",;"), Subject(thread.host))
        elif re.search(r"find any optimal provider|output empty list|No (?:eligible )?providers", message):
            self.sink.add("nccl.warn", message[:200], Subject(thread.host, thread.rank))

    def _plugin(self, thread: Thread, message: str) -> None:
        if "No plugin found" in message:
            self.sink.add("nccl.wording", (0, 21), Subject(thread.host))
        elif "Could not find: libnccl-net" in message:
            self.sink.add("nccl.wording", (22, NEWEST), Subject(thread.host))
        loaded = re.search(r"(?:Loaded|Using) net plugin (\S+)|Plugin name set by env to (\S+)", message)
        if loaded is not None:
            self.sink.add("nccl.plugin", loaded[1] or loaded[2], Subject(thread.host))

    def _using(self, thread: Thread, message: str) -> None:
        found = re.match(r"Using (?:non-device net plugin version \d+|(?:internal N|n)etwork (.+))", message)
        if found is not None and found[1]:
            self.sink.add("nccl.network", found[1].strip(), Subject(thread.host))

    def _initialized(self, thread: Thread, message: str) -> None:
        found = re.match(r"Initialized NET plugin (\S+)", message)
        if found is not None:
            self.sink.add("nccl.network", found[1], Subject(thread.host))

    def _bootstrap(self, thread: Thread, message: str) -> None:
        releases = (24, NEWEST) if message.startswith("Bootstrap:") else (0, 23)
        self.sink.add("nccl.wording", releases, Subject(thread.host))
        found = re.search(r"Using (?:\[\d+\])?([\w.@-]+):(\S+?)<", message)
        if found is not None:
            self.sink.add("nccl.bootstrap", (found[1], found[2]), Subject(thread.host))

    def _far(self, thread: Thread, message: str) -> None:
        far = _GDR_FAR.search(message)
        if far is not None:
            self.sink.add("nccl.gdr-far", (far[1], int(far[3]), int(far[4])), Subject(thread.host, device=far[2]))

    def _comm(self, thread: Thread, message: str) -> None:
        placed = _PLACED.search(message)
        if placed is not None:
            self._is_rank(thread, int(placed[2]), placed[1])
            sizes = (int(placed[3]), int(placed[4]), int(placed[5]), int(placed[7]))
            self.sink.add("nccl.placed", sizes, Subject(thread.host))
            return
        self._began(thread, message)

    def _began(self, thread: Thread, message: str) -> None:
        found = _INIT.search(message)
        if found is None:
            return
        rank = int(found[1])
        pointer = re.search(r"comm (0x\w+)", message)
        self._is_rank(thread, rank, pointer[1] if pointer else "")
        kind = "nccl.start" if found[6] == "START" else "nccl.complete"
        self.sink.add(kind, (found[5] or "", int(found[2])), Subject(thread.host, rank))

    def _connected(self, thread: Thread, message: str) -> None:
        gdr = re.search(r"use ring PXN (\d) GDR (\d)", message)
        if gdr is not None:
            self.sink.add("nccl.rings", (int(gdr[1]), int(gdr[2])), Subject(thread.host))

    def _nvls(self, thread: Thread, message: str) -> None:
        if "multicast support is" in message:
            self.sink.add("nccl.multicast", "is not available" not in message, Subject(thread.host))

    def _pattern(self, thread: Thread, message: str) -> None:
        found = re.match(
            r"Pattern (\d+), crossNic \d+, nChannels (\d+), bw ([\d.]+)/([\d.]+), type (\w+)/(\w+)", message
        )
        if found is not None:
            value = (int(found[1]), int(found[2]), float(found[3]), float(found[4]), found[5], found[6])
            self.sink.add("nccl.graph", value, Subject(thread.host))

    def _link(self, thread: Thread, message: str) -> None:
        found = _NVL.match(message)
        if found is None:
            return
        kind, rate, far, name = found.groups()
        if kind == "PCI":
            thread.gpu = name if far == "GPU" else ""
            if far == "PCI":
                thread.switch = (name, float(rate))
            elif thread.switch[0]:
                uplink = (*thread.switch, f"{far}/{name}", float(rate))
                self.sink.add("nccl.uplink", uplink, Subject(thread.host, device=f"{far}/{name}"))
        elif thread.gpu:
            value = (f"{far}/{name}", float(rate))
            self.sink.add("nccl.nvlink", value, Subject(thread.host, device=f"GPU/{thread.gpu}"))

    def _paths(self, thread: Thread, message: str) -> None:
        """Keep how far a GPU is from each network, as the print of all paths has it."""
        name, colon, ways = message.partition(" :")
        networks = tuple(_PATH.findall(ways)) if colon else ()
        if networks:
            kinds = ("switched" if " NVS/" in ways else "", *sorted(set(networks)))
            self.sink.add("nccl.networks", (len(networks), *kinds), Subject(thread.host, device=name))

    def _no_port(self, thread: Thread, message: str) -> None:
        found = _NO_PORT.search(message)
        if found is not None:
            self.sink.add("nccl.no-port", found[1], Subject(thread.host, device=found[1]))

    def _system(self, thread: Thread, message: str) -> None:
        thread.switch = ("", 0.0)
        found = re.match(r"=== System : maxBw ([\d.]+) totalBw ([\d.]+)", message)
        if found is not None:
            self.sink.add("nccl.system", (float(found[1]), float(found[2])), Subject(thread.host))

    def _version(self, _thread: Thread, message: str) -> None:
        self.version_line(message)

    def _failed(self, thread: Thread, message: str) -> None:
        if "libibverbs" in message:
            self.sink.add("nccl.no-verbs", message[:200], Subject(thread.host, thread.rank))
        elif "NET plugin" in message and not message.endswith((" IB", " Socket")):
            self._warning(thread, message)  # of a plugin that somebody installed

    def _attribute(self, thread: Thread, message: str) -> None:
        if "not found" in message and " coll of " not in message:
            self.sink.add("nccl.warn", message[:200], Subject(thread.host, thread.rank))

    def _timings(self, thread: Thread, message: str) -> None:
        found = re.search(r"rank (\d+) nranks (\d+) total ([\d.]+) \((.*)\)", message)
        if found is not None:
            parts = dict(re.findall(r"(\w+) ([\d.]+)", found[4]))
            slowest = max(parts, key=lambda name: float(parts[name]), default="")
            value = (float(found[3]), slowest, float(parts.get(slowest, 0.0)))
            self.sink.add("nccl.init-seconds", value, Subject(thread.host, int(found[1])))

    def _counts(self, thread: Thread, message: str) -> None:
        found = _COUNTS.match(message)
        if found is not None:
            value = (int(found[1]), int(found[3]), int(found[4]))
            self.sink.add("nccl.channels", value, Subject(thread.host))

    def _call(self, thread: Thread, message: str) -> None:
        at = message.rfind(" comm 0x")
        if at < 0 or " opCount " not in message:
            chosen = _ALGO.match(message)
            if chosen is not None:
                self.sink.add("nccl.choice", (chosen[1], int(chosen[2]), chosen[3], chosen[4]))
            return
        # a job calls millions of times: the last ones are looked at in the end
        end = message.find(" ", at + 8)
        key = (thread.host, thread.pid, message[at + 6 : end if end > 0 else None], thread.rank)
        said = self._said.get(key)
        if said is None:
            if len(self._said) >= MOST_CALLERS:
                return
            said = self._said[key] = deque(maxlen=KEPT_CALLS)
        said.append((self.sink.number, message))

    def _last_calls(self) -> dict[tuple[str, int, str], dict[int, tuple[str, int, int, Place]]]:
        """The last calls of each rank in communicators of each size, by number.

        Left out are numbers that a rank calls by more than once (calls of a group, and all on one host from 2.27
        have one number), and sizes of which a process has several communicators.
        """
        calls: dict[tuple[str, int, str], dict[int, tuple[str, int, int, Place]]] = {}
        twice: set[tuple[str, int, str, int]] = set()
        pointers: dict[tuple[str, str, str], set[str]] = {}
        ranks_of = self._ranks_of_callers()
        for (host, pid, pointer, thread_rank), said in self._said.items():
            rank = ranks_of.get((host, pid, pointer, thread_rank), -1)
            for number, message in said if rank >= 0 else ():
                found = _CALL.match(message)
                if found is None:
                    continue
                verb, operation, count, datatype, _, _, _, ranks = found.groups()
                pointers.setdefault((host, pid, ranks), set()).add(pointer)
                place = Place(self.sink.file, number, message[:160])
                mine = calls.setdefault((host, rank, ranks), {})
                if int(operation, 16) in mine:
                    twice.add((host, rank, ranks, int(operation, 16)))
                mine[int(operation, 16)] = (verb, int(count), int(datatype), place)
        for host, rank, ranks, operation_number in twice:
            del calls[host, rank, ranks][operation_number]
        several = {ranks for (_, _, ranks), own in pointers.items() if len(own) > 1}
        return {key: mine for key, mine in calls.items() if key[2] not in several}

    def _ranks_of_callers(self) -> dict[tuple[str, str, str, int], int]:
        """Return the rank of each process and communicator; of one host whose log names none, its device."""
        known = {
            key: self._processes.get((key[0], key[1], key[2]), key[3]) for key in self._said
        }  # host, process, communicator, rank of the thread
        if any(rank >= 0 for rank in known.values()) or len({key[0] for key in known}) > 1:
            return known
        devices = {(thread.host, thread.pid): thread.device for thread in self._threads.values()}
        own = {key: devices.get((key[0], key[1]), "") for key in known}
        return {key: int(device) if device.isdigit() else -1 for key, device in own.items()}

    def _rare(self, thread: Thread, message: str) -> None:
        """Take messages whose first word differs from line to line."""
        if " - Init " in message:
            self._began(thread, message)
            return
        if message.startswith("NET/") and "GPU Direct RDMA" in message:
            self._net_ib(thread, message)  # of a plugin by another name
            return
        if message.startswith("GPU/"):
            self._paths(thread, message)
            return
        returned = _RETURNED.match(message)
        if returned is not None:
            self.sink.text = message
            self.sink.add("nccl.returned", (returned[1], int(returned[2][:4])), Subject(thread.host, thread.rank))
            return
        found = _SET.match(message)
        if found is not None:
            self.sink.add(
                "nccl.setting", (found[1], found[2].strip().strip("'\"").rstrip(".")), Subject(thread.host)
            )
        elif (
            "Could not enable P2P" in message
            or "P2P is disabled between" in message
            or "Connection refused" in message
            or "Connection closed" in message
            or _is_trouble(message)
        ):
            self._warning(thread, message)

    def _warning(self, thread: Thread, message: str, source: str = "") -> None:
        # neither the words of a failed CUDA call nor those that nobody knows say whose they are
        said = _normal(message)
        if source and ("uda failure" in message or ("ompletion" not in said and mechanism_of(said) is None)):
            said = f"{source}: {said}"
        self.sink.text = message
        self.sink.add("nccl.warn", said, Subject(thread.host, thread.rank))

    def close(self) -> None:
        """Keep what was counted."""
        for (host, rank, side, way), (count, peer, place) in self._ways.items():
            value = (way, side, peer)
            self.sink.add("nccl.way", value, Subject(host, rank), place=place, count=count)
        for (host, rank, ranks), calls in self._last_calls().items():
            for number, (verb, count, datatype, place) in calls.items():
                self.sink.add(
                    "nccl.call", (number, verb, count, datatype, int(ranks)), Subject(host, rank), place=place
                )


def _release(said: str) -> str:
    """Return a release as NCCL names it, also where PyTorch before 1.11 took its number apart."""
    major, minor, patch = map(int, said.split("."))
    if major < FIRST_OF_FIVE_DIGITS:
        return said
    code = 1000 * major + 100 * minor + patch
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"


def _is_trouble(message: str) -> bool:
    """Return true for words of NCCL's own information that point to a cause by themselves."""
    if not has_trouble(message.lower().encode("utf-8", "replace")):
        return False
    mechanism = mechanism_of(_normal(message))
    return mechanism is not None and mechanism.cause != HARMLESS and mechanism.sure >= TELLING


def _normal(message: str) -> str:
    """A warning without the numbers that differ from rank to rank, but with small ones (error codes)."""
    return _NUMBER.sub(lambda found: found[0] if len(found[0]) <= 3 else "#", message)[:300]

"""Targets of `fuzz.py`: a subnet's management, by calls and by the sockets and the console that `up` serves."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from fuzzing.target import FRESH, Target, folder, of_text


@cache
def _fabric() -> Any:
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.fabric.compile import compile_fabric

    path = folder() / "subnet.yaml"
    path.write_bytes(
        b"schema: 1\ncluster:\n  hosts: {type: dgx-h100, count: 2}\n"
        b"  network: {technology: infiniband, topology: {kind: fat-tree}, switch: qm9700}\n"
    )
    spec = load_spec(path)
    return compile_fabric(build(spec.cluster, spec=spec))


class _Subnet:
    """An endpoint with a manager of the twin's own and a client; made anew after FRESH inputs."""

    def __init__(self) -> None:
        self.inputs = 0

    def endpoint(self) -> Any:
        from fabrictwin.subnet.agents.agent_state import SubnetState
        from fabrictwin.subnet.agents.mad_routing import Network
        from fabrictwin.subnet.operation.manager_host import HostedManager, first_adapter, settle
        from fabrictwin.subnet.serve.endpoint import Endpoint

        if self.inputs % FRESH == 0:
            self.made = Endpoint(Network(SubnetState(_fabric())))
            manager = HostedManager(self.made, first_adapter(self.made))
            self.now = settle([manager], 0)
            self.made.control(_connect(b""), self.now)
        self.inputs += 1
        return self.made


def _control(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("=IIII64s", 0xDEADBEEF, 0, kind, len(body), body)


def _connect(name: bytes, number: int = 4711) -> bytes:
    return _control(1, struct.pack("=III32s", number, 0, 0, name))


def _framed(mad: bytes, *, dlid: int = 0xFFFF, qp: int = 0) -> bytes:
    return struct.pack(">HHHHIIIIQ256s", dlid, 0, 0, 0, qp, qp, 0, 0xABCDEF, 256, mad)


def _mads() -> list[bytes]:
    from fabrictwin.subnet.wire.header import DirectedSmp, LidSmp, Method, PerfMad, SaMad
    from fabrictwin.subnet.wire.pm import PerfId
    from fabrictwin.subnet.wire.sa import RecordId
    from fabrictwin.subnet.wire.smp import AttributeId

    found = []
    for attribute in AttributeId:
        for method in (Method.GET, Method.SET):
            smp = DirectedSmp(method=method, attribute=attribute, tid=5, hop_count=1, modifier=1)
            smp.initial_path = bytes([0, 1])
            found.append(smp.encode())
            found.append(LidSmp(method=method, attribute=attribute, tid=6).encode())
    for identifier in PerfId:
        found.append(PerfMad(method=Method.GET, attribute=identifier, tid=7).encode())
    for record in RecordId:
        for method in (Method.GET, Method.GET_TABLE, Method.SET):
            found.append(SaMad(method=method, attribute=record, tid=8, component_mask=1).encode())
    return found


def _frames() -> Target:
    subnet = _Subnet()

    def read(data: bytes) -> None:
        endpoint = subnet.endpoint()
        subnet.now += 1_000_000
        endpoint.frame(0, data[:288].ljust(288, b"\0") if len(data) % 7 else data, subnet.now)
        endpoint.poll(subnet.now)

    lids = (0xFFFF, 1, 2, 3)
    return Target([_framed(mad, dlid=lids[i % 4], qp=i % 2) for i, mad in enumerate(_mads())], read)


def _controls() -> Target:
    subnet = _Subnet()

    def read(data: bytes) -> None:
        subnet.endpoint().control(data[:80].ljust(80, b"\0") if len(data) % 7 else data, subnet.now)

    samples = [_control(kind) for kind in range(11)] + [
        _connect(b"host-0/mlx5_0"),
        _connect(b"0x1"),
        _connect(b"9" * 32),
    ]
    return Target(samples, read)


def _attributes() -> Target:
    from fabrictwin.subnet.wire import header, notice, pm, sa, smp
    from fabrictwin.subnet.wire.fields import Attribute
    from fabrictwin.subnet.wire.header import check_mad

    kinds = [
        kind
        for module in (header, notice, pm, sa, smp)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Attribute) and kind is not Attribute
    ]

    def read(data: bytes) -> None:
        data = data.ljust(256, b"\0")
        for kind in kinds:
            kind.decode(data).encode()
        check_mad(data)

    from fabrictwin.subnet.wire.fields import MadError

    return Target(_mads(), read, (MadError,))


def _rmpp() -> Target:
    from fabrictwin.subnet.wire import rmpp
    from fabrictwin.subnet.wire.header import SaMad

    head = SaMad(method=0x92, attribute=0x11, tid=9)
    parts = rmpp.segments(head, bytes(range(256)) * 8)
    held: dict[str, Any] = {}
    inputs = [0]

    def read(data: bytes) -> None:
        if inputs[0] % 50 == 0:
            held["sender"], held["receiver"] = rmpp.Sender(list(parts)), rmpp.Receiver()
            held["sender"].start(0)
        inputs[0] += 1
        mad = SaMad.decode(data[:256].ljust(256, b"\0"))
        held["sender"].receive(mad, inputs[0] * 10**9)
        held["sender"].poll(inputs[0] * 10**9)
        held["receiver"].receive(mad)
        rmpp.records(held["receiver"].table, mad.attribute_offset)

    acks = []
    for kind in (2, 3, 4):
        acks.append(
            SaMad(
                method=0x92, tid=9, rmpp_version=1, rmpp_type=kind, rmpp_flags=1, rmpp_data1=1, rmpp_data2=3
            ).encode()
        )
    return Target([part.encode() for part in parts] + acks, read)


_LINES = [
    b"cut leaf-0/1", b"mend leaf-0/1", b"off host-0/mlx5_0", b"on host-0/mlx5_0", b"links leaf-0", b"help",
    b"silence leaf-0", b"overrun leaf-0/2", b"heal leaf-0/2", b"reboot leaf-0",
]  # fmt: skip


def _console() -> Target:
    from fabrictwin.subnet.serve.console import obey

    subnet = _Subnet()

    def read(text: str) -> None:
        endpoint = subnet.endpoint()
        subnet.now += 1_000_000
        obey(endpoint.state, text, subnet.now)

    return Target(_LINES, of_text(read))


def _rehearsal() -> Target:
    from fabrictwin.subnet.serve.console import find_jack, find_node, find_target

    state = _Subnet()

    def read(text: str) -> None:
        endpoint = state.endpoint()
        for find in (find_target, find_node, find_jack):
            try:
                find(endpoint.state, text)
            except Exception as error:
                if type(error).__name__ != "ConfigError":
                    raise

    return Target([b"cut leaf-0/1", b"leaf-0/1", b"host-0/mlx5_0/1", b"0x1/1"], of_text(read))


# ------------------------------------------------------------------ what `up` serves


def _drain(*sockets: socket.socket) -> None:
    """Read what waits at sockets that do not block."""
    for sock in sockets:
        with suppress(OSError):
            while True:
                sock.recv(4096)


class _Served:
    """A fabric served with its manager as `up` does, in this process, and a client's sockets; anew after FRESH."""

    def __init__(self) -> None:
        self.inputs = 0
        self.served: Any = None

    def ready(self) -> None:
        """Make what is not there; let the manager act now and then."""
        if self.inputs % FRESH == 0:
            self.close()
            self.open()
        elif self.inputs % 20 == 0:
            self.served._idle()
            if self.served.endpoint.clients[0] is None:
                self.connect()
        self.inputs += 1

    def open(self) -> None:
        from fabrictwin.subnet.agents.agent_state import SubnetState
        from fabrictwin.subnet.agents.mad_routing import Network
        from fabrictwin.subnet.serve.credentials import bind_abstract
        from fabrictwin.subnet.serve.endpoint import Endpoint
        from fabrictwin.subnet.serve.served_fabric import ServedFabric

        self.typed, console = os.pipe()
        self.keyboard = os.fdopen(console, "wb", buffering=0)
        sys.stdin = os.fdopen(self.typed)
        self.served = ServedFabric(Endpoint(Network(SubnetState(_fabric()))), say=lambda _: None)
        self.served.server.watch(sys.stdin, self.served._read_lines)
        self.served._first_sweep()
        name, number = self.served.server.name, os.getpid()
        self.control = bind_abstract(f"{name}:ctl{number}")
        self.data = bind_abstract(f"{name}:in{number}")
        for sock in (self.control, self.data):
            sock.setblocking(False)
        self.control.connect(f"\0{name}:ctl\0".encode())
        self.data.connect(f"\0{name}:out0\0".encode())
        self.connect()

    def connect(self) -> None:
        self.control.send(_connect(b"", os.getpid()))
        self.served.server.step(0)

    def close(self) -> None:
        if self.served is not None:
            self.served.server.close()
            for file in (self.control, self.data, self.keyboard, sys.stdin):
                file.close()

    def serve(self) -> None:
        """Let the server handle what there is, and read what it answers."""
        while self.served.server.step(0):
            pass
        _drain(self.control, self.data)


def _up_sockets() -> Target:
    """Datagrams on the management sockets: `c` and a control message, or `d` and a frame."""
    served = _Served()

    def read(data: bytes) -> None:
        served.ready()
        with suppress(OSError):  # the server has forgotten us, or takes no empty datagram
            (served.control if data[:1] == b"c" else served.data).send(data[1:])
        served.serve()

    lids = (0xFFFF, 1, 2, 3)
    frames = [b"d" + _framed(mad, dlid=lids[i % 4], qp=i % 2) for i, mad in enumerate(_mads())]
    controls = [b"c" + _control(kind) for kind in range(11)]
    named = [b"c" + _connect(name, os.getpid()) for name in (b"", b"host-0/mlx5_0", b"0x1", b"9" * 32)]
    return Target(frames + controls + 4 * named, read)


def _up_console() -> Target:
    """Lines typed at the console of `up`, through a pipe."""
    served = _Served()

    def read(data: bytes) -> None:
        served.ready()
        served.keyboard.write(data[:4000] + b"\n")
        for _ in range(2):  # a read of the server's takes 4,096 bytes
            served.serve()

    return Target(_LINES, read)


class _Simulator:
    """Another simulator, whose management sockets answer a client with what an input holds."""

    def __init__(self) -> None:
        from fabrictwin.subnet.serve.credentials import bind_abstract

        self.name = f"fuzz-{os.getpid()}-{id(self)}"
        self.control = bind_abstract(f"{self.name}:ctl")
        self.data = bind_abstract(f"{self.name}:out0")
        for sock in (self.control, self.data):
            sock.settimeout(0.0)

    def answer(self, answers: list[bytes], frames: list[bytes]) -> None:
        """Put answers where the client will look for them, before it asks."""
        for what, replies, own in (("ctl", answers, self.control), ("in", frames, self.data)):
            with suppress(OSError):  # not bound yet, or the queue is full
                for reply in replies:
                    own.sendto(reply, f"\0{self.name}:{what}{os.getpid()}\0".encode())
        _drain(self.control, self.data)


def _sm_connect() -> Target:
    """Answers of another simulator to the manager: parts before `---` are control, those after it frames."""
    from fabrictwin.subnet.manager.mad_transport import Path, get
    from fabrictwin.subnet.serve.umad_client import UmadTransport
    from fabrictwin.subnet.wire.header import DirectedSmp
    from fabrictwin.subnet.wire.smp import AttributeId

    simulator = _Simulator()

    class Client(UmadTransport):
        """A client that finds its answers waiting."""

        def _bind(self, what: str) -> Any:
            sock = super()._bind(what)
            sock.settimeout(0.002)
            if what.startswith("ctl"):
                simulator.answer(answers, [])
            else:
                simulator.answer([], frames)
            return sock

    answers: list[bytes] = []
    frames: list[bytes] = []

    def read(data: bytes) -> None:
        control, _, rest = data.partition(b"---")
        answers[:] = [control[at : at + 80] for at in range(0, min(len(control), 640), 80)]
        frames[:] = [rest[at : at + 288] for at in range(0, min(len(rest), 2304), 288)]
        client = Client(simulator.name, timeout_s=0.002, retries=0)
        try:
            client.become_manager()
            client.on_frame = lambda frame, now: []
            client.exchange([get(Path(0, bytes(64)), AttributeId.NODE_INFO)] * 2)
            client.listen(0.002)
        finally:
            client.close()

    def smp(tid: int) -> bytes:
        mad = DirectedSmp(method=0x81, attribute=AttributeId.NODE_INFO, tid=tid)
        return _framed(mad.encode())

    connected = _control(1, struct.pack("=III32s", 0, 0, 0, b"host-0"))
    manager = _control(9, struct.pack("=I", 1))
    return Target([connected + manager + b"---" + smp(1) + smp(2), connected + _control(5) + b"---"], read)


SUBNET: dict[str, Callable[[], Target]] = {
    "endpoint-frames": _frames,
    "endpoint-control": _controls,
    "attributes": _attributes,
    "rmpp": _rmpp,
    "console": _console,
    "console-names": _rehearsal,
    "up-sockets": _up_sockets,
    "up-console": _up_console,
    "sm-connect": _sm_connect,
}

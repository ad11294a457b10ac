"""Read what `ibnetdiscover` prints: switches, channel adapters, routers and the links between their ports.

The format is that of infiniband-diags (manual page ibnetdiscover(8)): for each node its identity, then one line
a port with what is plugged in at the other end. Every link therefore stands in the file twice, which is how a
file that was cut short is told from a whole one. What the file says twice must agree; the width and speed of a
link may differ between its ends, and both are kept. Extended port numbers of chassis (`[ext 5]`) and the
numbers that `--full` adds are read over. Ports that are down are not in the format.

A terminal program's log of such output is read too: what stands before the first line and after the last one, lost
tabs, and control sequences are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.records import record

Kind = Literal["switch", "ca", "router"]

SPEEDS = ("SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR")
WIDTHS = (1, 2, 4, 8, 12)
MAX_LID = 0xBFFF  # the last unicast LID; 65535 is what a port has that nobody gave one


@record
class Port:
    """One end of a link, as its own node's lines give it."""

    number: int
    guid: int  # of a channel adapter's port; 0 at a switch
    lid: int  # of a channel adapter's port; 0 at a switch, whose ports share its LID
    peer: str  # the node at the other end
    peer_port: int
    width: int
    speed: str
    line: int
    lmc: int = 0  # of a channel adapter's port


@record
class Node:
    """A switch, channel adapter or router. `name` is the file's own: `S-0002c903007b78b0`."""

    kind: Kind
    name: str
    guid: int
    system_guid: int  # the same for all nodes of one card or chassis; 0 where the file has none
    vendor: int
    device: int
    port_count: int
    description: str
    lid: int  # of a switch; 0 elsewhere
    port_guid: int  # of a switch's port 0; 0 elsewhere
    ports: tuple[Port, ...]
    line: int
    lmc: int = 0  # of a switch's port 0
    enhanced: bool = True  # whether a switch's port 0 is an enhanced one


@record
class Discovery:
    """A whole file. `nodes` is in file order."""

    file: str
    nodes: Mapping[str, Node]
    origin: tuple[int, int] = (0, 0)  # GUIDs of the node and port that it was discovered from; 0 where not said


_HEX = r"(?:0x)?([0-9a-fA-F]{1,16})"
_NODE_NAME = r"\"([SHR])-([0-9a-fA-F]{16})\""
_NUMBER = r"(\d{1,5})"
_ATTRIBUTE = re.compile(rf"(vendid|devid|sysimgguid|switchguid|caguid|rtguid)={_HEX}(?:\({_HEX}\))?\s*\Z")
_SWITCH = re.compile(
    rf"Switch\s*{_NUMBER}\s*{_NODE_NAME}\s*# \"(.*)\" (enhanced|base) port 0 lid {_NUMBER} lmc (\d)\s*\Z"
)
_CA = re.compile(rf"(Ca|Rt)\s*{_NUMBER}\s*{_NODE_NAME}\s*# \"(.*)\"\s*\Z")
_EXT = r"(?:\[ext \d+\])?"
_PORT = re.compile(
    rf"\[{_NUMBER}\]{_EXT}(?:\({_HEX}\))?\s*{_NODE_NAME}\[{_NUMBER}\]{_EXT}(?:\({_HEX}\))?\s*"
    rf"# (?:lid {_NUMBER} lmc (\d) )?\"(.*)\" lid {_NUMBER} (\d{{1,2}})x(\w+)(?: s=\d+ w=\d+)?(?: slot \d+)?\s*\Z"
)
_TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)|[\x00-\x08\x0e-\x1f\x7f]")
_ORIGIN = re.compile(rf"# *Initiated from node {_HEX} port {_HEX}")
_CHASSIS = re.compile(r"Chassis \d+\b|Chassis\s*\(|Spine \d+|Line \d+")
_BRACKET = re.compile(r"\[(?!\w[\w.-]*@)")  # a port, and no prompt such as '[root@host ~]#'
_KINDS: dict[str, Kind] = {"Switch": "switch", "Ca": "ca", "Rt": "router"}
_LETTER = {"switch": "S", "ca": "H", "router": "R"}
_OWN_GUID = {"switch": "switchguid", "ca": "caguid", "router": "rtguid"}


@dataclass
class _Open:
    """A node whose ports are still being read."""

    node: Node
    ports: dict[int, Port]


def parse(text: str, file: str | Path) -> Discovery:
    """Read the text of a file. Raises ConfigError with file and line for anything malformed or cut short."""
    reader = _Reader(str(file))
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        reader.read(_TERMINAL.sub("", line.rstrip("\r")).rstrip("\r"), number)
    reader.finish()
    discovery = Discovery(str(file), reader.nodes, reader.origin)
    if not discovery.nodes and reader.preface:
        raise reader.unexpected(*reader.preface)
    if not discovery.nodes:
        raise ConfigError("got no nodes, expected what `ibnetdiscover` prints", file=file, line=1)
    if not any(node.ports for node in discovery.nodes.values()):
        raise ConfigError("got nodes but no links: was the file cut short?", file=file, line=len(lines))
    _check_links(discovery, unfinished=len(lines) if lines[-1] else 0)
    return discovery


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.nodes: dict[str, Node] = {}
        self.attributes: dict[str, int] = {}
        self.attributes_line = 0
        self.open: _Open | None = None
        self.origin = (0, 0)
        self.begun = False  # whether a line of the format has been read
        self.stray: tuple[str, int] | None = None  # the first line since then that is none
        self.preface: tuple[str, int] | None = None  # the first line before it

    def error(self, message: str, line: int, key: str | None = None) -> ConfigError:
        return ConfigError(message, file=self.file, line=line, key=key)

    def read(self, line: str, number: int) -> None:
        text = line.lstrip()
        origin = _ORIGIN.match(text)
        if origin:
            self.origin = int(origin[1], 16), int(origin[2], 16)
        if not text or text.startswith("#") or _CHASSIS.match(text):
            return
        match = _ATTRIBUTE.match(text)
        if match is None and not (text.startswith(("Switch", "Ca", "Rt")) or _BRACKET.match(text)):
            if self.begun:
                self.stray = self.stray or (text, number)
            else:
                self.preface = self.preface or (text, number)
            return
        if not self.begun and match is None and not (_SWITCH.match(text) or _CA.match(text)):
            return  # a terminal's prompt
        if self.stray is not None:
            raise self.unexpected(*self.stray)
        self.begun = True
        if match:
            self._attribute(match[1], int(match[2], 16), number)
            if match[1] == "switchguid" and match[3]:
                self.attributes["port_guid"] = int(match[3], 16)
        elif text.startswith("["):
            self._port(text, number)
        else:
            self._node(text, number)

    def unexpected(self, text: str, number: int) -> ConfigError:
        return self.error(f"got {quoted(text.strip())}, expected a line as `ibnetdiscover` prints it", number)

    def _attribute(self, key: str, value: int, number: int) -> None:
        self.close()
        if not self.attributes:
            self.attributes_line = number
        if key in self.attributes:
            raise self.error("given twice for one node", number, key)
        self.attributes[key] = value

    def _node(self, line: str, number: int) -> None:
        self.close()
        switch = _SWITCH.match(line)
        other = None if switch else _CA.match(line)
        if switch:
            count, letter, guid, description, port0, lid, lmc = switch.groups()
            kind = _KINDS["Switch"]
        elif other:
            word, count, letter, guid, description = other.groups()
            kind, lid, lmc, port0 = _KINDS[word], "0", "0", "enhanced"
        else:
            raise self.error(f"got {quoted(line.strip())}, expected a node as `ibnetdiscover` prints it", number)
        name = f"{letter}-{guid.lower()}"
        if letter != _LETTER[kind]:
            raise self.error(f"got {name}, expected a name that begins with {_LETTER[kind]}", number)
        if name in self.nodes:
            raise self.error(f"got {name} a second time, first on line {self.nodes[name].line}", number)
        own = self.attributes.get(_OWN_GUID[kind])
        if own is not None and own != int(guid, 16):
            raise self.error(f"got {name}, expected the GUID {own:016x} of the lines above", number)
        node = Node(
            kind=kind,
            name=name,
            guid=int(guid, 16),
            system_guid=self.attributes.get("sysimgguid", 0),
            vendor=self.attributes.get("vendid", 0),
            device=self.attributes.get("devid", 0),
            port_count=int(count),
            description=description,
            lid=self._lid(lid, number),
            port_guid=self.attributes.get("port_guid", 0),
            ports=(),
            line=number,
            lmc=int(lmc),
            enhanced=port0 == "enhanced",
        )
        self.attributes = {}
        self.open = _Open(node, {})

    def _port(self, line: str, number: int) -> None:
        match = _PORT.match(line)
        if match is None:
            raise self.error(f"got {quoted(line.strip())}, expected a port as `ibnetdiscover` prints it", number)
        if self.open is None:
            raise self.error("got a port before any node", number)
        port, guid, letter, peer, peer_port, _, lid, lmc, _, _, width, speed = match.groups()
        owner = self.open.node
        port_number = int(port)
        if not 1 <= port_number <= owner.port_count:
            raise self.error(f"got port {port_number}, expected one from 1 to {owner.port_count}", number)
        if port_number in self.open.ports:
            first = self.open.ports[port_number].line
            raise self.error(f"got port {port_number} a second time, first on line {first}", number)
        if int(width) not in WIDTHS:
            raise self.error(f"got a width of {width}x, expected one of 1x, 2x, 4x, 8x, 12x", number)
        if speed not in SPEEDS:
            hint = did_you_mean(speed, SPEEDS)
            raise self.error(f"got the speed {quoted(speed)}, expected one of {', '.join(SPEEDS)}{hint}", number)
        if owner.kind != "switch" and lid is None:
            raise self.error("got no LID of the port itself, expected `lid N lmc N` after the #", number)
        self.open.ports[port_number] = Port(
            number=port_number,
            guid=int(guid, 16) if guid else 0,
            lid=self._lid(lid or "0", number),
            peer=f"{letter}-{peer.lower()}",
            peer_port=int(peer_port),
            width=int(width),
            speed=speed,
            line=number,
            lmc=int(lmc or 0),
        )

    def _lid(self, text: str, number: int) -> int:
        if int(text) > MAX_LID:
            raise self.error(f"got LID {text}, expected a unicast LID, at most {MAX_LID}", number)
        return int(text)

    def finish(self) -> None:
        self.close()
        if self.attributes:
            raise self.error("ends before the node that these lines begin", self.attributes_line)

    def close(self) -> None:
        """End the node whose ports were being read."""
        if self.open is not None:
            ports = tuple(self.open.ports[number] for number in sorted(self.open.ports))
            node = self.open.node
            self.nodes[node.name] = Node(**{**vars(node), "ports": ports})
            self.open = None


def _check_links(discovery: Discovery, *, unfinished: int) -> None:
    """Both ends of every link must stand in the file. `unfinished` is a last line without its line end."""
    for node in discovery.nodes.values():
        for port in node.ports:
            there = f'"{port.peer}"[{port.peer_port}]'
            here = f'"{node.name}"[{port.number}]'
            peer = discovery.nodes.get(port.peer)
            if peer is None:
                raise ConfigError(
                    f"got a link to {there}, a node that the file does not describe: was the file cut short?",
                    file=discovery.file,
                    line=port.line,
                )
            back = next((p for p in peer.ports if p.number == port.peer_port), None)
            if back is None:
                raise ConfigError(
                    f"got a link from {here} to {there}, expected one back from there: was the file cut short?",
                    file=discovery.file,
                    line=port.line,
                )
            if (back.peer, back.peer_port) != (node.name, port.number):
                raise ConfigError(
                    f'got a link from {here} to {there}, which itself is linked to "{back.peer}"'
                    f"[{back.peer_port}] on line {back.line}",
                    file=discovery.file,
                    line=port.line,
                )
            if port.line == unfinished and (port.width, port.speed) != (back.width, back.speed):
                raise ConfigError("ends in the middle of a line", file=discovery.file, line=unfinished)

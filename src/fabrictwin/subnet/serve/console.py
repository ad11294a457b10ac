"""Console of a fabric that is up: pull cables, switch nodes off and on, look.

One command a line, such as `cut leaf-0/5`, `mend leaf-0/5`, `off spine-1`, `on spine-1`, `mute leaf-0/5`,
`links leaf-0`.
"""

from __future__ import annotations

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.flow_control import OVERRUN, WATCHDOG

COMMANDS = {
    "cut": "NODE/PORT: pull the cable",
    "mend": "NODE/PORT: plug it in again",
    "off": "NODE: power off",
    "on": "NODE: power on again, as it left the factory",
    "silence": "NODE: its agents stop answering, its links stay up",
    "overrun": "NODE/PORT: the port ignores credits, the other end's buffer overruns",
    "mute": "NODE/PORT: the port sends no credit updates, the other end's watchdog expires",
    "heal": "NODE/PORT: the port keeps to flow control again",
    "partitions": "FILE: the manager takes partitions as OpenSM's partitions.conf has them",
    "qos": "FILE: the manager takes lines of an opensm.conf, as of --qos-options",
    "join": "NODE MGID: its port becomes a member of a multicast group",
    "leave": "NODE MGID: it is none any more",
    "links": "NODE: its ports and what is at the other end",
    "help": "this list",
}
_MISBEHAVE = {"overrun": OVERRUN, "mute": WATCHDOG}
_JACKS = ("cut", "mend", "heal", *_MISBEHAVE)
OF_MANAGERS = ("partitions", "qos", "join", "leave")  # carried out by `operation.manager_commands`
_STATES = {1: "down", 2: "init", 3: "armed", 4: "active"}


def find_node(state: SubnetState, name: str) -> int:
    """A node by name, description or GUID. Raises ConfigError."""
    try:
        return state.find(name)
    except KeyError:
        known = [state.fabric.node_name(int(n)) for n in state.fabric_node]
        raise ConfigError(f"got {name!r}, expected a node of the fabric{did_you_mean(name, known)}") from None


def find_jack(state: SubnetState, name: str) -> int:
    """The slot of `NODE/PORT`. Raises ConfigError where there is no such port, or no cable in it."""
    node, slash, port = name.rpartition("/")
    if not slash or not port.isdecimal():
        raise ConfigError(f"got {name!r}, expected a node and a port, such as 'leaf-0/5'")
    m = find_node(state, node)
    number = whole_or_none(port, least=1, most=state.ports[m])
    if number is None:
        raise ConfigError(f"got port {quoted(port)} of {node}, expected 1 to {state.ports[m]}")
    slot = state.base[m] + number
    if state.cable[slot] == NONE:
        raise ConfigError(f"got {name!r}, expected a port with a cable")
    return slot


def find_target(state: SubnetState, line: str) -> int:
    """The managed node that a line is about. Raises ConfigError where it is about none, or is no command."""
    command, _, argument = line.strip().partition(" ")
    if command not in COMMANDS or command == "help":
        known = [name for name in COMMANDS if name != "help"]
        raise ConfigError(f"got {line!r}, expected one of {', '.join(known)}{did_you_mean(command, known)}")
    argument = argument.strip()
    if command in _JACKS:
        return state.node_of[find_jack(state, argument)]
    return find_node(state, argument)


def obey(state: SubnetState, line: str, now_ps: int) -> str:
    """Do what a line says and return what to print. Raises ConfigError."""
    words = line.split(None, 1)
    if not words:
        return ""
    command, argument = words[0], words[1].strip() if len(words) > 1 else ""
    if command not in COMMANDS:
        raise ConfigError(
            f"got {command!r}, expected one of {', '.join(COMMANDS)}{did_you_mean(command, COMMANDS)}"
        )
    if command in OF_MANAGERS:
        raise ConfigError(f"got {command!r}, expected a manager of the twin's own to carry it out")
    if command == "help":
        return "\n".join(f"{name} {what}" for name, what in COMMANDS.items())
    if command in _JACKS:
        return _obey_about(state, command, argument, now_ps)
    m = find_node(state, argument)
    if command == "links":
        return "\n".join(_links(state, m))
    if command == "silence":
        state.silent.add(m)
    elif command == "off":
        state.power_off(m, now_ps)
    else:
        state.silent.discard(m)
        state.power_cycle(m, now_ps)
    return f"{argument}: {command}"


def _obey_about(state: SubnetState, command: str, name: str, now_ps: int) -> str:
    """Do something to the cable or the port of `NODE/PORT`."""
    slot = find_jack(state, name)
    if command == "mend" and not state.mend_cable(slot, now_ps):
        return f"{name} stays down: its link is up already, or the other end is off"
    if command == "cut":
        state.cut_cable(slot, now_ps)
    elif command in _MISBEHAVE:
        state.flow_control.misbehave(slot, _MISBEHAVE[command], now_ps)
    elif command == "heal" and not state.flow_control.heal(slot, now_ps):
        return f"{name} was well"
    return f"{name}: { {'cut': 'down', 'mend': 'up'}.get(command, command) }"


def _links(state: SubnetState, m: int) -> list[str]:
    lines = []
    for port in range(1, state.ports[m] + 1):
        slot = state.base[m] + port
        far = state.cable[slot]
        if far != NONE:
            node = state.fabric.node_name(int(state.fabric_node[state.node_of[far]]))
            text = _STATES.get(state.logical(slot), "?")
            lines.append(f"{port:4}  {text:6}  {node}/{state.number[far]}")
    return lines

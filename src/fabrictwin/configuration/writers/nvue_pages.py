"""The page of NVIDIA's NVUE command reference that documents each form of command that is written.

Pages are those below docs.nvidia.com/networking-ethernet-software/nvue-reference/ (their source is public:
github.com/CumulusNetworks/docs, content/nvue-reference). Forms are those of Cumulus Linux 5.6 to 5.14: the PFC
watchdog came with 5.6, and 5.15 renamed `service lldp` and writes `state enabled` where these have `enable on`.
"""

from __future__ import annotations

import re

REFERENCE = "https://docs.nvidia.com/networking-ethernet-software/nvue-reference/"
RELEASES = "Cumulus Linux 5.6 to 5.14"
_SET = "Set-and-Unset-Commands/"
_NAME, _NUMBER = r"[\w.-]+", r"\d+"
_PORT = rf"nv set interface {_NAME}"
_CLASS = rf"{_NAME} traffic-class {_NUMBER}"
_BGP = "nv set vrf default router bgp"

FORMS: tuple[tuple[str, str], ...] = (
    (rf"nv set system hostname {_NAME}", "System-Configuration"),
    (r"nv set qos roce (?:enable on|mode (?:lossless|lossy))", "QoS"),
    (rf"nv set qos mapping {_NAME} trust (?:l2|l3|port|both)", "QoS"),
    (rf"nv set qos mapping {_NAME} (?:dscp|pcp) {_NUMBER} switch-priority [0-7]", "QoS"),
    (rf"nv set qos egress-queue-mapping {_NAME} switch-priority [0-7] traffic-class [0-7]", "QoS"),
    (rf"nv set qos egress-scheduler {_CLASS} (?:mode (?:strict|dwrr)|bw-percent {_NUMBER})", "QoS"),
    (rf"nv set qos congestion-control {_CLASS} ecn enable", "QoS"),
    (rf"nv set qos congestion-control {_CLASS} (?:min-threshold|max-threshold|probability) {_NUMBER}", "QoS"),
    (rf"nv set qos pfc {_NAME} switch-priority [0-7]", "QoS"),
    (rf"nv set qos pfc {_NAME} (?:tx|rx) (?:enable|disable)", "QoS"),
    (rf"nv set qos pfc {_NAME} (?:cable-length|port-buffer|xoff-threshold|xon-threshold) {_NUMBER}", "QoS"),
    (rf"{_PORT} qos pfc profile {_NAME}", "QoS"),
    (rf"{_PORT} qos pfc-watchdog state enable", "QoS"),
    (rf"nv set qos pfc-watchdog (?:polling-interval|robustness) {_NUMBER}", "QoS"),
    (rf"{_PORT} link (?:breakout [248]x|state up|speed {_NUMBER}G|mtu {_NUMBER}|fec {_NAME})", "Interface"),
    (rf"{_PORT} (?:description '[^']*'|ip address [\d.:a-f]+/\d+)", "Interface"),
    (r"nv set router bgp router-id [\d.]+", "BGP"),
    (rf"nv set router bgp (?:enable on|autonomous-system {_NUMBER})", "BGP"),
    (rf"{_BGP} path-selection multipath aspath-ignore on", "BGP"),
    (rf"{_BGP} neighbor {_NAME} (?:remote-as external|type unnumbered)", "BGP"),
    (rf"{_BGP} address-family ipv4-unicast redistribute connected enable on", "BGP"),
    (rf"nv set service lldp tx-interval {_NUMBER}", "LLDP"),
)
_ALL = tuple((re.compile(form), f"{REFERENCE}{_SET}{page}/") for form, page in FORMS)
_APPLY = f"{REFERENCE}Config-Commands/"


def page_of(command: str) -> str:
    """Return the page that documents a command's form; empty where none of the forms is the command's.

    A comment at the command's end is passed over.
    """
    command = re.sub(r"\s+# .*$", "", command).strip()
    if re.fullmatch(r"nv config apply(?: -y)?", command):
        return _APPLY
    return next((page for form, page in _ALL if form.fullmatch(command)), "")

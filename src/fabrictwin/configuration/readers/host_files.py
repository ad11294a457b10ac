"""A host's other files: netplan, sysctl.d, limits.d, modules-load.d, grub.d, container arguments, nccl.conf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.yamlfile import read_yaml
from fabrictwin.configuration.model.hosts import Adapter, AdapterLink, Card, Host, Kernel
from fabrictwin.configuration.readers.problems import Problems


def read_netplan(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the interfaces of a netplan file. Raises ConfigError where it is not YAML or no netplan."""
    data, _ = read_yaml(text, file)
    problems = Problems(file)
    network = data.get("network") if isinstance(data, dict) else None
    if not isinstance(network, dict):
        raise ConfigError("got no network, expected netplan's YAML", file=file, line=1)
    adapters: dict[str, Adapter] = {}
    management = ""
    ethernets = network.get("ethernets")
    for name, row in (ethernets if isinstance(ethernets, dict) else {}).items():
        if not isinstance(row, dict):
            problems.add("syntax", str(name), f"got {quoted(row)}, expected an interface's settings")
            continue
        addresses = row.get("addresses") or ()
        address = str(addresses[0]) if isinstance(addresses, list) and addresses else ""
        mode = row.get("infiniband-mode")
        if name == "eth0" and "mtu" not in row:
            management = address
            continue
        mtu = problems.number(row["mtu"], f"{name}.mtu", least=68, most=65520) if "mtu" in row else None
        link = AdapterLink(address=address, mtu_bytes=mtu)
        if mode in _MODES:
            link = replace(link, technology="infiniband", ipoib_mode=mode)
        if mode is not None and mode not in _MODES:
            problems.add("range", f"{name}.infiniband-mode", f"got {quoted(mode)}, expected datagram or connected")
        adapters[str(name)] = Adapter("", str(name), link)
    return Host(host, adapters, management=management, file=file), problems


_MODES = ("datagram", "connected")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for line, raw in enumerate(text.splitlines(), 1):
        content = raw.strip()
        if content and not content.startswith(("#", ";")):
            yield line, content


def read_sysctl(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the settings of a sysctl.d file."""
    problems, found = Problems(file), {}
    for line, content in _lines(text):
        name, equals, value = (part.strip() for part in content.partition("="))
        if not equals:
            problems.add("syntax", content[:40], "got no =, expected NAME = VALUE", line)
            continue
        found[name.lstrip("-").replace("/", ".")] = value
    return Host(host, kernel=Kernel(sysctl=found), file=file), problems


def read_limits(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the limits of a limits.d file."""
    problems, found = Problems(file), {}
    for line, content in _lines(text):
        words = content.partition("#")[0].split()
        if len(words) != 4 or words[1] not in ("soft", "hard", "-"):
            problems.add("syntax", content[:40], "got something else, expected WHO soft|hard|- WHAT VALUE", line)
            continue
        for kind in ("soft", "hard") if words[1] == "-" else (words[1],):
            found[f"{words[0]} {kind} {words[2]}"] = words[3]
    return Host(host, kernel=Kernel(limits=found), file=file), problems


def read_modules(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the modules of a modules-load.d file."""
    names = tuple(content.split()[0].replace("-", "_") for _, content in _lines(text))
    return Host(host, kernel=Kernel(modules=names), file=file), Problems(file)


def read_modprobe(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the options of a modprobe.d file."""
    found = {}
    for _, content in _lines(text):
        words = content.split(None, 2)
        if words[0] == "options" and len(words) == 3:
            found[words[1].replace("-", "_")] = words[2]
    return Host(host, kernel=Kernel(module_options=found), file=file), Problems(file)


def read_kernel_arguments(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the arguments of a grub.d file, or of /proc/cmdline."""
    found: list[str] = []
    for _, content in _lines(text):
        quoted_part = re.search(r"GRUB_CMDLINE_LINUX(?:_DEFAULT)?=[\"'](.*?)[\"']", content)
        listed = quoted_part[1] if quoted_part else content if "=" in content and " " in content else ""
        found += [word for word in listed.split() if not word.startswith("$")]
    return Host(host, kernel=Kernel(kernel_arguments=tuple(found)), file=file), Problems(file)


def read_container(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the arguments of `docker run`, one a line or in one command."""
    found = []
    for _, content in _lines(text):
        found += [part.strip() for part in re.split(r"\s(?=--)", " " + content) if part.strip().startswith("--")]
    return Host(host, container=tuple(found), file=file), Problems(file)


def read_nccl(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the variables of nccl.conf, or of lines `export NCCL_X=y`."""
    problems, found = Problems(file), {}
    for line, content in _lines(text):
        name, equals, value = content.removeprefix("export ").partition("=")
        if not equals:
            problems.add("syntax", content[:40], "got no =, expected NCCL_NAME=value", line)
            continue
        found[name.strip()] = value.strip().strip("\"'")
    return Host(host, nccl=found, file=file), problems


def read_unit(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the host of a systemd unit: that it is there says nothing of whether it is on."""
    return Host(host, file=file), Problems(file)


def read_udev(text: str, file: str, host: str) -> tuple[Host, Problems]:
    """Return the names that rules give to adapters."""
    problems, adapters = Problems(file), {}
    for line, content in _lines(text):
        name = re.search(r'NAME="([^"]+)"', content)
        device = re.search(r'RESULT=="([^"]+)"', content)
        slot = re.search(r'KERNELS=="([^"]+)"', content)
        if name is None:
            problems.add("syntax", content[:40], 'got no NAME="...", expected an interface\'s name', line)
        elif device is not None:
            adapters[device[1]] = Adapter(device[1], netdev=name[1])
        elif slot is not None:
            adapters[name[1]] = Adapter("", netdev=name[1], card=Card(pci=slot[1]))
    return Host(host, adapters, file=file), problems

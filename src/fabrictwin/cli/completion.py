"""Completion of the command line: the shells' scripts, and what stands for an argument.

What completes imports the catalog or reads a cluster only when a shell asks. A completion never fails: what cannot
be read completes to nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from fabrictwin.base.errors import FabrictwinError
from fabrictwin.base.textfile import writing

if TYPE_CHECKING:
    from fabrictwin.cluster.blueprint import HostSite


def script(root: click.Command, shell: str, variable: str) -> str:
    """The script that a shell sources to complete `fabrictwin`."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(root, {}, "fabrictwin", variable).source() + "\n"


def install(root: click.Command, shell: str, variable: str) -> str:
    """Write the script to where the shell looks for it; a line that says where. Raises ConfigError."""
    home = Path.home()
    places = {
        "bash": home / ".local/share/bash-completion/completions/fabrictwin",
        "zsh": home / ".zfunc/_fabrictwin",
        "fish": home / ".config/fish/completions/fabrictwin.fish",
    }
    path = places[shell]
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script(root, shell, variable), encoding="utf-8")
    more = "; ~/.zshrc needs 'fpath+=~/.zfunc; autoload -Uz compinit; compinit'" if shell == "zsh" else ""
    return f"{path}, for shells that start from now on{more}"


def _matching(words: Iterable[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(begun)]


def spec_file(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """A file, which the shell completes itself."""
    return [CompletionItem(begun, type="file")]


def catalog_name(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names of the catalog's entries."""
    from fabrictwin import catalog

    found = ((name, entry.title) for _, name, entry in catalog.entries())
    return [CompletionItem(name, help=title) for name, title in found if name.startswith(begun)]


def catalog_kind(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Kinds of the catalog's entries."""
    from fabrictwin import catalog

    return _matching(dict.fromkeys(kind for kind, _, _ in catalog.entries()), begun)


def host_type(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Hosts of the catalog."""
    from fabrictwin import catalog

    return _matching(catalog.names("host"), begun)


def example_name(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names of the bundled examples."""
    from fabrictwin.runs.examples import example_names

    return _matching(example_names(), begun)


def host_name(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Hosts of the cluster that stands on the command line already."""
    return _matching((host.name for host in _hosts(context)), begun)


def gpu_name(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """GPUs of that cluster, a host's once its name stands."""
    from fabrictwin import catalog

    found: list[str] = []
    for host in _hosts(context):
        if begun.startswith(f"{host.name}/") and host.type:
            found += [f"{host.name}/gpu{i}" for i in range(catalog.host(host.type).nodes.gpu)]
        elif host.name.startswith(begun):
            found.append(f"{host.name}/gpu0")
    return _matching(found, begun)


def _hosts(context: click.Context) -> Sequence[HostSite]:
    """Hosts of the first file on the command line that is a cluster; none where it cannot be read."""
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_cluster

    try:
        # click forgets the arguments before an option whose value is being typed
        words = [str(context.params.get("cluster")), *shlex.split(os.environ.get("COMP_WORDS", ""))[1:]]
        file = next((word for word in words if Path(word).is_file()), None)
        if file is None:
            return ()
        spec = load_cluster(file)
        return build(spec.cluster, spec=spec).hosts
    except (FabrictwinError, ValueError):
        return ()


def fabric_names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Presets of fabrics with commas between, the last one completed."""
    from fabrictwin import catalog

    whole, comma, last = begun.rpartition(",")
    return _matching((f"{whole}{comma}{name}" for name in catalog.names("fabric")), whole + comma + last)

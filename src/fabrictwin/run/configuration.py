"""config.resolved.yaml: the spec with every default spelled out, in a form that can be run again."""

from __future__ import annotations

from typing import Any

import yaml

from fabrictwin.run.result import RunResult


class _Dumper(yaml.SafeDumper):
    """Quotes words that our reader takes for numbers and PyYAML does not, such as 1e9."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    try:
        float(value)
        style = "'"
    except ValueError:
        style = None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _text)


def config_yaml(result: RunResult) -> str:
    """The file as text."""
    text: Any = yaml.dump(result.resolved, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return str(text)

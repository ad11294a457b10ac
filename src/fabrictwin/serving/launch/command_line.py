"""Read the commands that start vLLM: `vllm serve` with its options, and the `ray start` before it.

Options are those of `vllm serve` that settle a layout, a step or a launch; the many that do neither are known by
name and do nothing here. What vLLM's own parser would refuse is refused in its words.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.whole_numbers import whole

ALIASES = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"}
ALIASES |= {"-q": "--quantization", "-n": "--nnodes", "-r": "--node-rank", "-dpl": "--data-parallel-size-local"}
SHELL = re.compile(r"\\\r?\n")
MOST_WORDS = 10_000


def _count(text: str) -> int:
    """Return a whole number, with k, m, g (powers of 1000) or K, M, G (of 1024) behind it as vLLM reads them."""
    scale = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 0)
    return whole(text[:-1]) * scale if scale else whole(text)


def _share(text: str) -> float:
    if not re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,9}", text):
        raise ValueError(text)
    return float(text)


def _fp8(text: str) -> str:
    return "fp8" if text.startswith("fp8") else text


def _quantization(text: str) -> str:
    known = {"modelopt": "fp8", "compressed-tensors": "fp8", "modelopt_fp4": "fp4", "nvfp4": "fp4"}
    return known.get(text, text)


SETTINGS: Mapping[str, Callable[[str], Any]] = {
    "tensor-parallel-size": whole,
    "pipeline-parallel-size": whole,
    "data-parallel-size": whole,
    "max-model-len": _count,
    "max-num-batched-tokens": _count,
    "max-num-seqs": whole,
    "gpu-memory-utilization": _share,
    "block-size": whole,
    "num-gpu-blocks-override": whole,
    "scheduling-policy": str,
    "long-prefill-token-threshold": whole,
    "prefill-schedule-interval": whole,
    "kv-cache-dtype": _fp8,
    "quantization": _quantization,
    "all2all-backend": str,
    "watermark": _share,
    "cudagraph-capture-sizes": whole,
}
"""Options that are settings of a spec's `workload.serving`, by vLLM's names, and how their values are read."""

SWITCHES = (
    "enable-chunked-prefill",
    "enable-prefix-caching",
    "async-scheduling",
    "enforce-eager",
    "enable-expert-parallel",
)
LAUNCH: Mapping[str, Callable[[str], Any]] = {
    "distributed-executor-backend": str,
    "nnodes": whole,
    "node-rank": whole,
    "master-addr": str,
    "master-port": whole,
    "data-parallel-size-local": whole,
    "data-parallel-address": str,
    "data-parallel-rpc-port": whole,
    "data-parallel-start-rank": whole,
    "data-parallel-backend": str,
}
SEVERAL = ("cudagraph-capture-sizes",)
"""Options with one value or more behind them."""

LAUNCH_SWITCHES = ("headless",)
WITHOUT_EFFECT = (
    "host", "port", "api-key", "served-model-name", "dtype", "tokenizer", "tokenizer-mode", "download-dir",
    "load-format", "seed", "uvicorn-log-level", "chat-template", "tool-call-parser", "reasoning-parser",
    "revision", "max-log-len", "generation-config", "config-format", "swap-space", "root-path", "ssl-keyfile",
    "ssl-certfile",
)  # fmt: skip
SWITCHES_WITHOUT_EFFECT = (
    "trust-remote-code", "disable-log-requests", "disable-log-stats", "enable-auto-tool-choice",
    "enable-log-requests", "disable-uvicorn-access-log", "enable-prompt-tokens-details",
)  # fmt: skip
NOT_MODELLED = (
    "enable-lora", "lora-modules", "limit-mm-per-prompt", "kv-transfer-config", "speculative-config",
    "disable-custom-all-reduce", "decode-context-parallel-size", "enable-dbo", "enable-eplb", "cpu-offload-gb",
)  # fmt: skip
_ALL = (*SETTINGS, *SWITCHES, *LAUNCH, *LAUNCH_SWITCHES, *WITHOUT_EFFECT, *SWITCHES_WITHOUT_EFFECT, *NOT_MODELLED)


@dataclass(frozen=True)
class Launch:
    """Commands that start one server.

    Attributes:
        model: The model as `vllm serve` names it.
        settings: Settings of `workload.serving`, by key.
        launch: Options of the launch itself, by option; switches are true.
        environment: Variables that the commands set.
        ray_nodes: Nodes that `ray start` makes a Ray cluster of; 0 without.
        servers: `vllm serve` commands found, one a node without Ray.
    """

    model: str
    settings: Mapping[str, Any]
    launch: Mapping[str, Any]
    environment: Mapping[str, str]
    ray_nodes: int = 0
    servers: int = 1


def commands(text: str) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield each simple command of shell text: the variables set before it, and its words. Raises ConfigError."""
    exported: dict[str, str] = {}
    for line in SHELL.sub(" ", text).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError as error:
            raise ConfigError(f"got {quoted(line)}, expected a shell command: {error}") from None
        if len(words) > MOST_WORDS:
            raise ConfigError(f"got a line of {len(words)} words, expected at most {MOST_WORDS}")
        for command in _divided(words):
            variables, rest = _variables(command)
            if rest[:1] == ["export"]:
                exported |= _variables(rest[1:])[0]
            elif not rest:
                exported |= variables
            elif rest[0] in ("sh", "bash", "/bin/sh", "/bin/bash") and any(w in ("-c", "-lc") for w in rest[:-1]):
                inner = rest[next(i for i, word in enumerate(rest) if word in ("-c", "-lc")) + 1]
                if inner != text:
                    for more, found in commands(inner):
                        yield exported | variables | more, found
            else:
                yield exported | variables, rest


def _divided(words: Sequence[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if word and set(word) <= set(";&|"):
            if command:
                yield command
            command = []
        else:
            command.append(word)


def _variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        name, sign, value = word.partition("=")
        if word in ("env", "sudo", "exec", "time"):
            continue
        if not sign or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            return found, list(words[place:])
        found[name] = value
    return found, []


def read_launch(text: str, environment: Mapping[str, str] | None = None) -> Launch:
    """Return what shell text launches. Raises ConfigError where there is no `vllm serve`, or vLLM refuses it."""
    ray, servers = 0, []
    for variables, words in commands(text):
        variables = {**(environment or {}), **variables}
        if words[:2] == ["ray", "start"]:
            ray += 1
        elif words[:2] == ["vllm", "serve"]:
            servers.append((variables, words[2:]))
        elif "vllm.entrypoints.openai.api_server" in words:
            servers.append((variables, words[words.index("vllm.entrypoints.openai.api_server") + 1 :]))
    if not servers:
        raise ConfigError(f"got {quoted(text[:80])}, expected a command 'vllm serve MODEL …'", key="--check")
    variables, words = servers[0]
    model, options = _options(words)
    settings = {name.replace("-", "_"): value for name, value in options.items() if name in _OF_SETTINGS}
    launch = {name: value for name, value in options.items() if name in LAUNCH or name in LAUNCH_SWITCHES}
    return Launch(model, settings, launch, variables, ray, len(servers))


_OF_SETTINGS = frozenset((*SETTINGS, *SWITCHES))


def _options(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the model and the options of `vllm serve`. Raises ConfigError."""
    model, options, place = "", {}, 0
    while place < len(words):
        word, place = words[place], place + 1
        if not word.startswith("-"):
            if model:
                raise ConfigError(f"vllm: error: unrecognized arguments: {quoted(word)}", key="--check")
            model = word
            continue
        name, sign, value = ALIASES.get(word, word).partition("=")
        name = ALIASES.get(name, name).replace("_", "-").removeprefix("--")
        if name == "model" or name in SETTINGS or name in LAUNCH or name in WITHOUT_EFFECT:
            if not sign:
                if place == len(words):
                    raise ConfigError(f"vllm: error: argument --{name}: expected one argument", key="--check")
                value, place = words[place], place + 1
            if name in SEVERAL:
                values = [_value(name, value)]
                while place < len(words) and words[place].isdecimal():
                    values.append(_value(name, words[place]))
                    place += 1
                options[name] = values
            elif name == "model":
                model = value
            elif name not in WITHOUT_EFFECT:
                options[name] = _value(name, value)
            continue
        place = _switch(name, options, sign, words, place)
    if not model:
        raise ConfigError("got vllm serve without a model, expected its name behind it", key="--check")
    return model, options


def _value(name: str, value: str) -> Any:
    try:
        return (SETTINGS.get(name) or LAUNCH[name])(value)
    except ValueError:
        message = f"vllm: error: argument --{name}: invalid value: {quoted(value)}"
        raise ConfigError(message, key="--check") from None


def _switch(name: str, options: dict[str, Any], sign: str, words: Sequence[str], place: int) -> int:
    """Read an option without a value; returns the place behind it. Raises ConfigError."""
    if name in NOT_MODELLED or name.removeprefix("no-") in NOT_MODELLED:
        raise ConfigError(f"got --{name}, which is not modelled", key="--check")
    positive = name.removeprefix("no-")
    if sign or (name not in SWITCHES_WITHOUT_EFFECT and positive not in (*SWITCHES, *LAUNCH_SWITCHES)):
        hint = did_you_mean(name, _ALL)
        raise ConfigError(f"vllm: error: unrecognized arguments: --{name}{hint}", key="--check")
    if positive in (*SWITCHES, *LAUNCH_SWITCHES):
        options[positive] = not name.startswith("no-")
    return place


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """Return settings of `workload.serving` as options of `vllm serve`, in the order of their table."""
    flags = []
    for name in (*SETTINGS, *SWITCHES):
        value = settings.get(name.replace("-", "_"))
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            flags.append(f"--{name} {' '.join(map(str, value))}")
        else:
            flags.append(f"--{name} {shlex.quote(value if isinstance(value, str) else json.dumps(value))}")
    return flags

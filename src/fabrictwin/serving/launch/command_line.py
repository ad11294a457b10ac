"""Read the commands that start vLLM: `vllm serve` with its options, and the `ray start` before it.

Options that settle a layout, a step or a launch are read; those that change a step in a way that is not modelled
are told; the many that do neither do nothing here. What vLLM's own parser would refuse is refused in its words.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.records import record
from fabrictwin.base.whole_numbers import whole
from fabrictwin.serving.launch.options import Option, find_option
from fabrictwin.serving.scheduler.release import NAMES
from fabrictwin.workload.model.huggingface_weights import INTEGER_METHODS

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
    if text in ("compressed-tensors", "modelopt"):
        return "auto"  # as the model's own configuration says
    known = {"modelopt_fp4": "fp4", "nvfp4": "fp4", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8"}
    return known.get(text, "int4" if text in INTEGER_METHODS else text)


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
    "max-cudagraph-capture-size": whole,
}
"""Options that are settings of a spec's `workload.serving`, by vLLM's names, and how their values are read."""

SWITCHES = (
    "enable-chunked-prefill",
    "enable-prefix-caching",
    "async-scheduling",
    "enforce-eager",
    "disable-custom-all-reduce",
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
    "moe-backend": str,
}
LAUNCH_SWITCHES = ("headless",)
REFUSED = {
    "enable-lora": "LoRA",
    "lora-modules": "LoRA",
}
LEFT_OUT = {
    "limit-mm-per-prompt": "multimodal input",
    "mm-processor-kwargs": "multimodal input",
    "mm-encoder-tp-mode": "multimodal input",
    "kv-transfer-config": "KV from and to other engines (`disaggregated` of a spec has both sides)",
    "kv-offloading-size": "KV outside of the GPU",
    "speculative-config": "drafts (`speculative_config` of a spec has them, with their acceptance)",
    "spec-method": "drafts (`speculative_config` of a spec has them, with their acceptance)",
    "decode-context-parallel-size": "context parallelism",
    "prefill-context-parallel-size": "context parallelism",
    "enable-dbo": "micro-batches that overlap",
    "enable-eplb": "experts that move",
    "cpu-offload-gb": "weights in host memory",
    "kv-cache-memory-bytes": "a KV cache of given bytes (`num_gpu_blocks_override` of a spec)",
    "compilation-config": "another way to compile and capture",
    "optimization-level": "another way to compile and capture",
    "performance-mode": "another way to compile and capture",
    "attention-backend": "another attention than the release's own",
    "attention-config": "another attention than the release's own",
    "moe-backend": "other experts' kernels than the release's own",
    "linear-backend": "other products' kernels than the release's own",
    "disable-sliding-window": "windows that are off",
    "disable-hybrid-kv-cache-manager": "one KV group for all layers",
    "hf-overrides": "a model's configuration that is overridden",
    "stream-interval": "tokens that are sent in groups",
    "max-num-partial-prefills": "prompts in chunks beside each other",
    "max-long-partial-prefills": "prompts in chunks beside each other",
    "max-num-active-seqs": "its bound",
    "config": "a file of options",
}
"""Options that change what a step does or holds, and what of it the table is without."""

LEVEL = re.compile(r"-O(=?[0-3]|\..+)?")


@record
class Launch:
    """Commands that start one server.

    Attributes:
        model: The model as `vllm serve` names it.
        settings: Settings of `workload.serving`, by key.
        launch: Options of the launch itself, by option; switches are true.
        environment: Variables that the commands set.
        left_out: Options that are not modelled, and what the prediction is without.
        ray_nodes: Nodes that `ray start` makes a Ray cluster of; 0 without.
        servers: `vllm serve` commands found, one a node without Ray.
    """

    model: str
    settings: Mapping[str, Any]
    launch: Mapping[str, Any]
    environment: Mapping[str, str]
    left_out: Mapping[str, str]
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


def read_launch(text: str, environment: Mapping[str, str] | None = None, release: str = NAMES[-1]) -> Launch:
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
    model, options = _options(words, release)
    settings = {name.replace("-", "_"): value for name, value in options.items() if name in _OF_SETTINGS}
    launch = {name: value for name, value in options.items() if name in LAUNCH or name in LAUNCH_SWITCHES}
    left_out = {name: what for name, what in LEFT_OUT.items() if options.get(name) not in (None, False, "auto")}
    return Launch(model, settings, launch, variables, left_out, ray, len(servers))


_OF_SETTINGS = frozenset((*SETTINGS, *SWITCHES))


def _options(words: Sequence[str], release: str) -> tuple[str, dict[str, Any]]:
    """Return the model and the options of `vllm serve`. Raises ConfigError."""
    model, place = "", 0
    options: dict[str, Any] = {}
    while place < len(words):
        word, place = words[place], place + 1
        if LEVEL.fullmatch(word):
            options["optimization-level"] = word
            place += word == "-O" and place < len(words) and words[place] in ("0", "1", "2", "3")
            continue
        if not word.startswith("-"):
            if model:
                raise ConfigError(f"vllm: error: unrecognized arguments: {quoted(word)}", key="--check")
            model = word
            continue
        name, sign, value = word.partition("=")
        path = name.partition(".")[0]  # --compilation-config.mode: a part of what is given as JSON
        option, positive = find_option(path, release)
        if option.name in REFUSED:
            raise ConfigError(f"got --{option.name}: {REFUSED[option.name]} is not modelled", key="--check")
        if not option.has_value and option.takes != "optional":
            if sign:
                raise ConfigError(
                    f"vllm: error: argument --{option.name}: ignored explicit argument {quoted(value)}",
                    key="--check",
                )
            options[option.name] = positive
            continue
        values = [value] if sign else []
        if option.has_value and not sign:
            if place == len(words) or _is_option(words[place]):
                raise ConfigError(f"vllm: error: argument --{option.name}: expected one argument", key="--check")
            values, place = [words[place]], place + 1
        while option.takes == "several" and not sign and place < len(words) and not words[place].startswith("-"):
            values.append(words[place])
            place += 1
        if option.name == "model":
            model = values[0]
        else:
            options[option.name] = _values(option, values)
    if not model:
        raise ConfigError("got vllm serve without a model, expected its name behind it", key="--check")
    return model, options


def _is_option(word: str) -> bool:
    """Return if a word is an option, and no negative number."""
    return word.startswith("-") and not re.fullmatch(r"-[0-9.]+", word)


def _values(option: Option, values: Sequence[str]) -> Any:
    """Return an option's value, or several. Raises ConfigError."""
    for value in values:
        if option.choices and value not in option.choices:
            listed = ", ".join(map(repr, option.choices))
            message = (
                f"vllm: error: argument --{option.name}: invalid choice: {quoted(value)} (choose from {listed})"
            )
            raise ConfigError(message, key="--check")
    read = SETTINGS.get(option.name) or LAUNCH.get(option.name)
    if read is None:
        return " ".join(values) or True
    try:
        found = [read(value) for value in values]
    except ValueError:
        message = f"vllm: error: argument --{option.name}: invalid value: {quoted(values[0])}"
        raise ConfigError(message, key="--check") from None
    return found if option.takes == "several" else found[0]


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

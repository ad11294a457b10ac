"""`serve --check` and `--emit`: launches of vLLM that are read, judged and written."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.vllm_sources import real_vllms

from fabrictwin.base.errors import ConfigError
from fabrictwin.cli import main
from fabrictwin.cluster.spec.spec import Spec, load_spec
from fabrictwin.serving.config.server import serving_section
from fabrictwin.serving.launch.check import Check, check
from fabrictwin.serving.launch.command_line import commands, read_launch
from fabrictwin.serving.launch.container import read_containers
from fabrictwin.serving.launch.options import options
from fabrictwin.serving.launch.recipe import recipe
from fabrictwin.serving.scheduler.release import NAMES

LAUNCH = Path(__file__).parents[2] / "examples/launch"
SUPPORT = Path(__file__).parents[1] / "support"


def cluster(**edits: Any) -> Spec:
    few = {"workload.serving.benchmark.num_prompts": 10}
    return load_spec(LAUNCH / "two-nodes.yaml").with_({**few, **edits})


def judged(given: str) -> Check:
    return check(cluster(), given)


def said(found: Check, kind: str) -> str:
    return "\n".join(finding.text for finding in found.findings if finding.kind == kind)


def test_shell_text_is_read_as_a_shell_reads_it() -> None:
    text = """# a comment
export A=1 B='two words'
C=3 vllm serve m \\
   -tp 2 && echo done; bash -lc "ray start --head | cat"
"""
    found = list(commands(text))
    assert [words for _, words in found] == [
        ["vllm", "serve", "m", "-tp", "2"],
        ["echo", "done"],
        ["ray", "start", "--head"],
        ["cat"],
    ]
    assert found[0][0] == {"A": "1", "B": "two words", "C": "3"}
    assert found[2][0] == {"A": "1", "B": "two words"}


def test_options_become_settings() -> None:
    found = read_launch(
        "vllm serve org/m -tp 8 --pipeline_parallel_size=2 --max-model-len 32K --max-num-batched-tokens 8k "
        "--no-enable-prefix-caching --enforce-eager --kv-cache-dtype fp8_e4m3 -q fp8 --port 8000 "
        "--trust-remote-code --cudagraph-capture-sizes 1 2 4 --gpu-memory-utilization .85 "
        "--max-cudagraph-capture-size 4"
    )
    assert found.model == "org/m"
    assert found.settings == {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
        "max_model_len": 32768,
        "max_num_batched_tokens": 8000,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "kv_cache_dtype": "fp8",
        "quantization": "fp8",
        "cudagraph_capture_sizes": [1, 2, 4],
        "max_cudagraph_capture_size": 4,
        "gpu_memory_utilization": 0.85,
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("echo vllm", "expected a command 'vllm serve MODEL"),
        ("vllm serve -tp 8", "without a model"),
        ("vllm serve m n", "unrecognized arguments: 'n'"),
        ("vllm serve m --tensor-paralel-size 2", "unrecognized arguments: --tensor-paralel-size, did you mean"),
        ("vllm serve m -tp two", "argument --tensor-parallel-size: invalid value: 'two'"),
        ("vllm serve m -tp", "argument --tensor-parallel-size: expected one argument"),
        ("vllm serve m --enable-lora", "--enable-lora: LoRA is not modelled"),
        (
            "vllm serve m --scheduling-policy lifo",
            r"--scheduling-policy: invalid choice: 'lifo' \(choose from 'fcfs'",
        ),
        ("vllm serve m --enforce-eager=True", "--enforce-eager: ignored explicit argument 'True'"),
        ("vllm serve m --swap-space 4", r"unrecognized arguments: --swap-space \(vLLM 0.12, 0.15 has it\)"),
        ("vllm serve 'm", "expected a shell command: No closing quotation"),
    ],
)
def test_what_is_no_launch(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        read_launch(text)


LINES = [
    line.split(" ", 1)
    for line in (Path(__file__).parent / "decisions/command_lines.txt").read_text().splitlines()
    if line[0] != "#"
]


@pytest.mark.parametrize(("answers", "line"), LINES)
def test_lines_are_taken_where_the_releases_parser_takes_them(answers: str, line: str) -> None:
    found = ""
    for release in NAMES:
        try:
            read_launch(f"vllm serve {line}", release=release)
            found += "y"
        except ConfigError:
            found += "n"
    assert found == answers


@pytest.mark.slow
def test_options_and_lines_are_the_real_parsers() -> None:
    """`VLLM_PYTHON` and `VLLM_SOURCES` as for the scheduler's decisions."""
    for python, source, release in real_vllms():

        def ask(what: str, text: str = "", python: str = python, source: str = source) -> str:
            command = [python, str(SUPPORT / "vllm_parser.py"), source, what]
            return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

        own = {option.name: option.takes for option in options(release).values()}
        assert own == json.loads(ask("options").splitlines()[-1]), release
        answers = ask("lines", "\n".join(line for _, line in LINES)).splitlines()[-1]
        assert answers == "".join(found[NAMES.index(release)] for found, _ in LINES), release


def test_all_reduces_without_the_custom_kernel_take_longer() -> None:
    """On H100 under 0.19 they go to symmetric memory; the option acts, and can be taken back."""

    def tpot_ms(*more: str) -> float:
        found = judged(" ".join(["vllm serve m -tp 8 --max-model-len 8192", *more]))
        assert not said(found, "left out")
        assert found.prediction is not None
        return float(found.prediction.fields["mean_tpot_ms"])

    without = tpot_ms("--disable-custom-all-reduce")
    assert without > 1.02 * tpot_ms()
    assert tpot_ms("--no-disable-custom-all-reduce") == tpot_ms()


def test_what_is_not_modelled_is_told() -> None:
    found = judged(
        "vllm serve m -tp 8 --enable-eplb -O3 --no-enable-dbo --max-model-len 8192 "
        """--limit-mm-per-prompt '{"image": 0}' --api-server-count 4"""
    )
    assert said(found, "left out").splitlines() == [
        "--limit-mm-per-prompt: multimodal input",
        "--enable-eplb: experts that move",
        "--optimization-level: another way to compile and capture",
    ]
    assert found.prediction is not None


@pytest.mark.parametrize(
    ("stored", "command", "marlin"),
    [
        ("mxfp4", "VLLM_MXFP4_USE_MARLIN=1 vllm serve m", True),
        ("mxfp4", "vllm serve m --moe-backend marlin", True),
        ("mxfp4", "vllm serve m --moe-backend auto", False),
        ("none", "VLLM_MXFP4_USE_MARLIN=1 vllm serve m", False),
    ],
)
def test_experts_in_mxfp4_by_marlin(stored: str, command: str, marlin: bool) -> None:
    """On Hopper they have kernels of their own, which compute prompts faster; the variable is for MXFP4 alone."""
    mixtral = str(Path(__file__).parents[2] / "examples/models/mixtral-8x7b.json")
    asked = cluster()
    serving = {**dict(asked.workload)["serving"], "model": mixtral}
    asked = asked.model_copy(update={"workload": {"serving": serving}})

    def ttft_ms(text: str) -> float:
        options = " -tp 2 --max-model-len 8192" + (f" -q {stored}" if stored != "none" else "")
        found = check(asked, text + options)
        assert said(found, "left out") == ""
        assert found.prediction is not None
        return float(found.prediction.fields["mean_ttft_ms"])

    plain = ttft_ms("vllm serve m")
    assert (ttft_ms(command) > 1.1 * plain) if marlin else (ttft_ms(command) == plain)


def test_experts_by_other_kernels_than_are_modelled_are_told() -> None:
    found = judged("vllm serve m -tp 8 --moe-backend marlin --max-model-len 8192")
    assert said(found, "left out") == "--moe-backend: other experts' kernels than the release's own"


def test_the_guides_example_goes_over_rdma_and_in_containers_over_sockets() -> None:
    """Ray over two nodes, tensor parallelism across them: what NCCL_DEBUG shows, and what it costs."""
    plain, contained = judged(str(LAUNCH / "ray.sh")), judged(str(LAUNCH / "compose.yaml"))
    assert "via NET/IB/0/GDRDMA" in said(plain, "logged")
    assert "NET/Socket" not in said(plain, "logged")
    assert "GPU KV cache size:" in said(plain, "logged")
    assert "via NET/Socket/" in said(contained, "logged")
    assert "no /dev/infiniband" in said(contained, "silent")
    for found in (plain, contained):
        assert "tensor_parallel_size 16 is more than a node's 8 GPUs" in said(found, "warned")
        assert "VLLM_HOST_IP" not in said(found, "warned")
        assert not found.refused
    assert plain.prediction is not None
    assert contained.prediction is not None
    assert contained.prediction.fields["mean_tpot_ms"] > 1.3 * plain.prediction.fields["mean_tpot_ms"]


RAY = "ray start --head\nray start --address=a:6379\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("vllm serve m -tp 16", r"World size \(16\) is larger than the number of available GPUs \(8\)"),
        ("vllm serve m -tp 8 -pp 2 --nnodes 3", r"the cluster has 2 hosts, and 3 are asked for"),
        ("vllm serve m -tp 3 --nnodes 2 --master-addr a", r"World size \(3\) must be divisible .* nodes \(2\)"),
        ("vllm serve m -tp 16 --nnodes 2", "--master-addr is 127.0.0.1 by default"),
        (
            "ray start --head\nvllm serve m -tp 16 --distributed-executor-backend ray",
            r"required GPUs \(16\) exceeds .* placement group \(8: 1 × ray start\)",
        ),
        (RAY + "vllm serve m -tp 16 -dp 2 --distributed-executor-backend ray", r"required GPUs \(32\) exceeds"),
        ("vllm serve m -tp 8 -dp 2", "2 data parallel ranks of 8 GPUs are started on this node of 8"),
        ("vllm serve m --distributed-executor-backend slurm", "invalid choice: 'slurm'"),
        ("vllm serve m -tp 6", "tensor_parallel_size: got 6, expected a divisor of the model's 64"),
        ("vllm serve m -tp 8 --max-model-len 100m", "max_model_len: got 100000000: one request needs"),
        ("vllm serve m", "no memory is left for KV blocks"),
        ("vllm serve m -tp 8 --enable-expert-parallel", "enable_expert_parallel: got true, and .* has no experts"),
    ],
)
def test_what_vllm_refuses(text: str, reason: str) -> None:
    found = judged(text)
    assert found.refused
    assert found.prediction is None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(said(found, "refused"))


def test_a_length_beyond_the_models_is_allowed_by_a_variable() -> None:
    """vLLM takes the model's own length for the most, unless it is told that this is meant."""
    read = cluster()
    model = str(Path(__file__).parents[2] / "examples/models/llama-3-8b.json")
    read = read.model_copy(update={"workload": {"serving": {**dict(read.workload)["serving"], "model": model}}})
    command = "vllm serve m --max-model-len 16384"
    found = check(read, command)
    assert "max_model_len (16384) is greater than the derived max_model_len (8192" in said(found, "refused")
    assert not check(read, f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {command}").refused


@pytest.mark.second
def test_what_goes_unsaid() -> None:
    found = judged(RAY + "vllm serve m -tp 8 -pp 2 --distributed-executor-backend ray")
    assert "VLLM_HOST_IP is not set" in said(found, "warned")
    assert "asynchronous scheduling is off" in said(found, "silent")
    assert "max_model_len is the model's" in said(found, "silent")
    assert "GDRDMA" in said(found, "logged")
    one = judged("vllm serve m -tp 8")
    assert "NET/" not in said(one, "logged")
    assert "VLLM_HOST_IP" not in said(one, "warned")


def test_containers_are_told_by_what_they_may(tmp_path: Path) -> None:
    def container(**service: Any) -> Any:
        text = yaml.safe_dump({"services": {"a": {"command": "vllm serve m", **service}}})
        return read_containers(text, tmp_path / "c.yaml")[1]

    bare = container()
    assert (bare.rdma_devices, bare.locked_memory, bare.shared_memory, bare.host_network) == (False,) * 4
    assert container(privileged=True).rdma_devices
    assert container(devices=["/dev/infiniband:/dev/infiniband"]).rdma_devices
    assert container(cap_add=["IPC_LOCK"]).locked_memory
    assert container(ulimits={"memlock": {"soft": -1, "hard": -1}}).locked_memory
    assert container(ipc="host").shared_memory
    assert container(environment=["A=1"]).environment == {"A": "1"}
    with pytest.raises(ConfigError, match="no container that starts vLLM"):
        read_containers("services: {a: {command: sleep 1}}", tmp_path / "c.yaml")
    with pytest.raises(ConfigError, match="services of a Compose file or a LeaderWorkerSet"):
        read_containers("kind: Pod", tmp_path / "c.yaml")


@pytest.mark.parametrize("layout", [(8, 2, 1), (16, 1, 1), (4, 1, 1), (8, 1, 2)])
@pytest.mark.parametrize("kind", ["ray", "nodes", "kubernetes"])
@pytest.mark.second
def test_what_is_emitted_passes_the_check(tmp_path: Path, kind: str, layout: tuple[int, int, int]) -> None:
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    edits = {f"workload.serving.{name}": size for name, size in zip(names, layout, strict=True)}
    spec = cluster(**edits, **{"workload.serving.enable_prefix_caching": False})
    text = recipe(spec, kind).replace("MODEL", "org/model")
    file = tmp_path / f"launch.{'yaml' if kind == 'kubernetes' else 'sh'}"
    file.write_text(text)
    found = check(spec, str(file))
    assert not found.refused, found.findings
    assert said(found, "warned") in (
        "",
        "tensor_parallel_size 16 is more than a node's 8 GPUs: all-reduces cross nodes",
    )
    assert found.prediction is not None
    own = serving_section(spec)
    assert found.prediction.server.layout.caching is False
    assert found.prediction.server.data == own.data_parallel_size
    assert found.prediction.server.served.group.size == own.tensor_parallel_size


@pytest.mark.parametrize(
    ("release", "text"), [("0.15", "VLLM_MXFP4_USE_MARLIN=1 vllm serve m"), ("0.33", "--moe-backend marlin")]
)
def test_kernels_of_experts_are_emitted_as_the_release_is_told_of_them(release: str, text: str) -> None:
    mixtral = str(Path(__file__).parents[2] / "examples/models/mixtral-8x7b.json")
    asked = cluster()
    serving = {
        **dict(asked.workload)["serving"],
        "model": mixtral,
        "release": release,
        "quantization": "mxfp4",
        "moe_backend": "marlin",
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 1,
    }
    asked = asked.model_copy(update={"workload": {"serving": serving}})
    emitted = recipe(asked, "nodes").replace("MODEL", "m")
    assert text in emitted
    found = check(asked, emitted)
    assert said(found, "left out") == ""
    assert found.prediction is not None
    assert found.prediction.server.served.experts.backend == "marlin"


def test_the_command_prints_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    spec = str(LAUNCH / "two-nodes.yaml")
    with pytest.raises(SystemExit) as ended:
        main(["serve", spec, "--check", "vllm serve m -tp 16"])
    assert ended.value.code == 1
    assert capsys.readouterr().out.startswith("refused:  World size (16)")
    with pytest.raises(SystemExit):
        main(["serve", spec, "--check", "vllm serve m -tp 16", "--json"])
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "refused"
    assert main(["serve", spec, "--emit", "ray"]) == 0
    assert "ray start --head" in capsys.readouterr().out

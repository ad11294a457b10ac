"""Configurations of training frameworks: what they ask for, what has no effect, what garbled ones get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.interchange.frameworks.read_config import Beside, ImportedConfig, read_config, read_text_config
from fabrictwin.interchange.frameworks.shell_arguments import program_arguments

ROOT = Path(__file__).parents[2]
LLAMA_8B = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256 "
    "--seq-length 8192 --micro-batch-size 1 --global-batch-size 128 --bf16"
)
SCRIPT = """#!/bin/bash
TP_SIZE=2
NODES=$((8 * 2 - 14))
DTYPE="fp8"
MODEL_ARGS=(
    --num-layers ${NUM_LAYERS:-32}   # as published
    --hidden-size 4096 --num-attention-heads 32
    # --num-layers 99
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" && $NODES -eq 2 ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-param-gather")
elif [ -z "$DTYPE" ]; then
    DTYPE_ARGS+=(--fp16)
else
    DTYPE_ARGS+=(--fp32)
fi
if [ ! -f train.py ]; then
    echo "--no such file"
    exit 1
fi
OPTIONS=" \\
    --lr 1e-4 \\
    --split '99,1,0'"
torchrun --nproc_per_node 8 train.py \\
    ${MODEL_ARGS[@]} "${DTYPE_ARGS[@]}" ${OPTIONS} \\
    --tensor-model-parallel-size=${TP_SIZE}
"""


def arguments(extra: str = "", base: str = LLAMA_8B) -> ImportedConfig:
    return read_config(f"{base} {extra}".split())


def test_script_gives_the_words_that_its_program_gets() -> None:
    words = program_arguments(SCRIPT, "train.sh")
    assert " ".join(word.text for word in words) == (
        "torchrun --nproc_per_node 8 train.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
        "--fp8-format hybrid --fp8-param-gather --lr 1e-4 --split 99,1,0 --tensor-model-parallel-size=2"
    )
    assert {word.text: word.line for word in words}["--hidden-size"] == 7
    assert words[-1].line == 27


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=(\n --bf16\n", "t.sh:1: got a bracket that nothing closes"),
        ("a\n--split 'x\n", "t.sh:2: got ', which nothing closes"),
        ("case $X in\n", "t.sh:1: got case, expected plain assignments or if"),
        ("A=ab\n" + "A=$A$A\n" * 40, "t.sh:23: got variables that grow without end"),
        ("A=$B\nB=${A}\necho x\n", "t.sh: got no options"),
        ("--bf16\n--num-layers 2\n--hidden-size 9x\n", "t.sh:3 --hidden-size: got '9x', expected a whole number"),
    ],
)
def test_garbled_scripts_are_named_by_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_text_config(text, "t.sh")
    assert str(error.value).startswith(message)


def test_megatron_model_is_that_of_its_config_file() -> None:
    found = arguments("--lr 1e-4 --save /tmp/x --num-workers 2")
    theirs = json.loads((ROOT / "examples/models/llama-3-8b.json").read_text())
    model = found.training["model"]
    same = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads", "vocab_size")
    assert {key: model[key] for key in same} == {key: theirs[key] for key in same}
    assert model["model_type"] == "llama"
    assert [one.key for one in found.unused] == ["--lr", "--num-workers", "--save"]
    assert found.assumed == ()


@pytest.mark.parametrize(
    ("extra", "key", "value"),
    [
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2",
            "parallel",
            {"pp": 4, "vp": 4},
        ),
        ("--context-parallel-size 2 --cp-comm-type all_gather", "parallel", {"cp": 2, "context": "all-gather"}),
        ("--use-distributed-optimizer --overlap-param-gather", "overlap", {"parameters": True}),
        ("--grad-reduce-in-bf16", "gradient_precision", "same"),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "scaling", "current"),
        (
            "--fp8-format e4m3 --first-last-layers-bf16 --num-layers-at-end-in-bf16 4",
            "wide_layers",
            {"first": 1, "last": 4},
        ),
        ("--recompute-granularity full --recompute-method uniform", "recompute", "full"),
        ("--recompute-granularity selective --recompute-modules layernorm", "recompute_modules", ["norms"]),
        ("--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap", "overlap", {"tensor": "full"}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "sharding", "zero-3"),
        ("--ddp-bucket-size 1000", "overlap", {"bucket": "4000 B"}),
        ("--attention-backend unfused", "attention", "materialised"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "loss", "fused"),
        ("--lr 1", "software", "megatron-lm"),
    ],
)
def test_megatron_arguments_become_their_keys(extra: str, key: str, value: object) -> None:
    assert arguments(extra).training[key] == value


def test_megatron_experts_and_latent_attention() -> None:
    mixtral = arguments("--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8").training
    assert (mixtral["model"]["model_type"], mixtral["parallel"]) == ("mixtral", {"ep": 8})
    deepseek = arguments(
        "--num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-layer-freq ([0]*3+[1]*29) "
        "--moe-shared-expert-intermediate-size 2816 --multi-latent-attention --q-lora-rank 1536 "
        "--kv-lora-rank 512 --mtp-num-layers 1"
    ).training
    model = deepseek["model"]
    assert (model["first_k_dense_replace"], model["n_shared_experts"], model["kv_lora_rank"]) == (3, 2, 512)
    assert deepseek["prediction_layers"] == 1


def test_gpt_3_with_learned_positions_is_gpt_2() -> None:
    found = arguments(
        base="--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --fp16 "
        "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 1536 --tokenizer-type "
        "GPT2BPETokenizer --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16"
    ).training
    assert (found["model"]["model_type"], found["model"]["n_inner"], found["model"]["vocab_size"]) == (
        "gpt2",
        49152,
        50257,
    )
    assert (found["precision"], found["gradient_precision"], found["overlap"]) == (
        "fp16",
        "same",
        {"tensor": "gradients", "pipeline": False},
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "--tensor-model-parallel-size 3",
            "--tensor-model-parallel-size: got 3, expected a divisor of the model's 32",
        ),
        (
            "--recompute-granularity full --recompute-method block",
            "--recompute-method: got block, expected uniform",
        ),
        ("--fp8-format hybrid --fp8-recipe other", "--fp8-recipe: got 'other', expected delayed or tensorwise"),
        ("--num-experts 8 --moe-layer-freq [0,1]", "--moe-layer-freq: got '[0,1]', expected N or"),
        ("--pipeline-model-parallel-size 5", "--pipeline-model-parallel-size: got 5, expected a divisor"),
    ],
)
def test_what_cannot_be_is_refused_by_its_argument(extra: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        arguments(extra)
    assert str(error.value).startswith(message)


def test_full_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="got neither bf16 nor fp16"):
        arguments(base=LLAMA_8B.replace("--bf16", ""))


BESIDE = Beside(model=str(ROOT / "examples/models/llama-3-8b.json"), sequence=4096)


def deepspeed(**keys: Any) -> ImportedConfig:
    data = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, **keys}
    return read_text_config(json.dumps(data, indent=1), "ds.json", BESIDE)


def test_deepspeed_zero_and_its_buckets() -> None:
    zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 2e8, "contiguous_gradients": True}
    found = deepspeed(train_batch_size=64, gradient_accumulation_steps="auto", zero_optimization=zero)
    assert found.training["global_batch"] == 64
    assert found.training["sharding"] == {"strategy": "zero-2"}
    assert found.training["overlap"] == {"bucket": "400000000 B"}  # bf16
    names = [one.key for one in found.unused]
    assert "zero_optimization.contiguous_gradients" in names
    assert "zero_optimization.overlap_comm" in names  # the twin's stage 2 always overlaps
    first = deepspeed(
        zero_optimization={"stage": 1, "overlap_comm": True}, data_types={"grad_accum_dtype": "fp32"}
    )
    assert first.training["overlap"] == {"gradients": True, "bucket": "2000000000 B"}
    assert not {"software", "loss"} & first.training.keys()  # DeepSpeed's steps were not compared
    assert deepspeed(zero_optimization={"stage": 3, "mics_shard_size": 8}).training["sharding"]["ranks"] == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"bf16": {"enabled": true}}', "ds.json train_micro_batch_size_per_gpu: got nothing"),
        ('{\n"bf16" {"enabled": 7}\n}', "ds.json:2: is no JSON"),
        (
            '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},\n"zero_optimization": {\n'
            '"stage": 5}}',
            "ds.json:3 zero_optimization.stage: got 5, expected 0 to 3",
        ),
        ('{"train_micro_batch_size_per_gpu": 1}', "ds.json bf16.enabled: got neither"),
        ("{}", "ds.json bf16.enabled: got neither"),
    ],
)
def test_garbled_deepspeed_is_named_by_key_and_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_text_config(text, "ds.json", BESIDE)
    assert str(error.value).startswith(message)


def test_deepspeed_leaves_the_model_to_the_program() -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}'
    with pytest.raises(ConfigError, match="--model CONFIG"):
        read_text_config(text, "ds.json")
    with pytest.raises(ConfigError, match="--sequence"):
        read_text_config(text, "ds.json", Beside(model=BESIDE.model))


def titan(flavor: str = "405B", parallelism: str = "", rest: str = "") -> ImportedConfig:
    text = (
        f'[model]\nname = "llama3"\nflavor = "{flavor}"\nconverters = ["float8"]\n[training]\n'
        f'local_batch_size = 2\nseq_len = 8192\n[activation_checkpoint]\nmode = "full"\n'
        f"[parallelism]\n{parallelism}\n{rest}"
    )
    return read_text_config(text, "t.toml")


@pytest.mark.parametrize("section", ["quantize.linear.float8", "float8"])
@pytest.mark.parametrize(("recipe", "scaling"), [("rowwise", "rowwise"), ("tensorwise", "current")])
def test_torchtitans_recipe_says_how_fp8_scales(section: str, recipe: str, scaling: str) -> None:
    found = titan(rest=f'[{section}]\nrecipe_name = "{recipe}"')
    assert found.training["scaling"] == scaling
    with pytest.raises(ConfigError, match="recipe_name: got"):
        titan(rest=f'[{section}]\nrecipe_name = "rowwise_with_gw_hp"')


def test_torchtitan_recomputes_by_operation_with_tensor_parallelism() -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
        '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "op"\n'
        "[parallelism]\ntensor_parallel_degree = 4\n"
    )
    section = read_text_config(text, "t.toml").training
    assert (section["recompute"], section["parallel"]) == ("operations", {"tp": 4})


def test_torchtitan_llama_3() -> None:
    found = titan(
        parallelism="data_parallel_shard_degree = -1\ntensor_parallel_degree = 8\n"
        "enable_async_tensor_parallel = true",
        rest="[compile]\nenable = true\n[metrics]\nlog_freq = 10",
    )
    section = found.training
    assert section["model"]["intermediate_size"] == 53248
    assert (section["parallel"], section["sequence_parallel"], section["overlap"]) == (
        {"tp": 8},
        True,
        {"tensor": "full"},
    )
    assert (section["precision"], section["scaling"], section["recompute"]) == ("fp8", "current", "full")
    assert section["sharding"] == {"strategy": "fsdp"}
    assert "kernels" not in section
    assert (section["software"], section["loss"], section["recompute_ends_early"]) == (
        "torchtitan",
        "compiled",
        True,
    )
    assert [(one.key, one.line) for one in found.unused] == [("metrics.log_freq", 17)]


def test_torchtitan_compiles_the_components_that_are_named() -> None:
    eager = titan(rest='[compile]\nenable = true\ncomponents = ["model"]').training
    assert (eager["loss"], eager.get("kernels")) == ("eager", None)
    assert titan().training["loss"] == "eager"
    with pytest.raises(ConfigError, match=r"compile.components: got 'loss', expected a list"):
        titan(rest='[compile]\ncomponents = "loss"')


def test_torchtitan_recomputes_to_the_end_where_it_says_so() -> None:
    text = (
        '[model]\nflavor = "8B"\n[training]\nseq_len = 8192\n'
        '[activation_checkpoint]\nmode = "full"\nearly_stop = false\n'
    )
    found = read_text_config(text, "t.toml")
    assert found.training["recompute_ends_early"] is False
    assert found.assumed == ()
    assert "ends early" in titan().assumed[0]


def test_torchtitan_hybrid_sharding_and_pipelines() -> None:
    section = titan(
        "8B",
        "data_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 8\npipeline_parallel_degree = 4\n"
        'pipeline_parallel_schedule = "Interleaved1F1B"',
    ).training
    assert section["parallel"] == {"pp": 4, "vp": 2, "dp": 32}
    assert section["sharding"] == {"strategy": "fsdp", "ranks": 8, "reshard_after_forward": False}
    assert (section["micro_batch_size"], section["micro_batches"], section["kernels"]) == (1, 2, "eager")


def test_torchtitan_refuses_what_the_twin_lacks() -> None:
    with pytest.raises(
        ConfigError, match=r"t.toml:12 parallelism.pipeline_parallel_schedule: got 'ZBVZeroBubble'"
    ):
        titan("8B", 'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "ZBVZeroBubble"')
    with pytest.raises(ConfigError, match=r"t.toml:3 model.flavor: got 'llama3' '9B'"):
        titan("9B")
    with pytest.raises(ConfigError, match="is no TOML"):
        read_text_config("[model\n", "t.toml")


NEMO = """trainer: {precision: bf16, devices: 8}
model:
  micro_batch_size: 4
  global_batch_size: 8
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 12
  hidden_size: 768
  num_attention_heads: 12
  virtual_pipeline_model_parallel_size: null
  normalization: rmsnorm
  bias: False
  activation: fast-swiglu
  position_embedding_type: rope
  hidden_dropout: 0.0
  attention_dropout: 0.0
  share_embeddings_and_output_weights: False
  fp8: True
  fp8_hybrid: True
  activations_checkpoint_granularity: selective
  optim: {name: distributed_fused_adam, lr: 2e-4}
"""


def test_nemo_by_its_own_names() -> None:
    found = read_text_config(NEMO, "nemo.yaml", Beside(vocabulary=32000))
    section = found.training
    assert (section["model"]["model_type"], section["model"]["intermediate_size"]) == ("llama", 2048)
    assert (section["precision"], section["recompute"], section["sharding"]) == ("fp8", "selective", "zero-1")
    assert (section["sequence"], section["global_batch"], section["software"]) == (4096, 8, "nemo")
    assert [one.key for one in found.unused] == [
        "trainer.devices",
        "model.max_position_embeddings",
        "model.optim.lr",
    ]


def test_megatron_bridge_is_told_from_nemo() -> None:
    model = "\n".join(f"  {line.strip()}" for line in NEMO.splitlines()[4:] if "optim" not in line)
    bridge = (
        f"train: {{micro_batch_size: 4, global_batch_size: 8}}\nmixed_precision: {{bf16: true}}\nmodel:\n{model}\n"
    )
    found = read_text_config(bridge.replace("${.encoder_seq_length}", "4096"), "b.yaml", Beside(vocabulary=32000))
    assert (found.framework, found.training["software"]) == ("Megatron-Bridge", "megatron-bridge")


def test_nemo_references_that_lead_nowhere_are_named() -> None:
    with pytest.raises(ConfigError, match=r"nemo.yaml:6 model.max_position_embeddings: got \$\{.other\}"):
        read_text_config(NEMO.replace("${.encoder_seq_length}", "${.other}"), "nemo.yaml")
    with pytest.raises(ConfigError, match=r"nemo.yaml:13 model.activation: got geglu"):
        read_text_config(NEMO.replace("fast-swiglu", "geglu"), "nemo.yaml")


def test_yaml_is_a_workload_that_a_spec_takes() -> None:
    import yaml

    import fabrictwin as ft

    found = ft.import_config([*LLAMA_8B.split(), "--lr", "1"])
    assert yaml.safe_load(found.yaml) == {"workload": {"training": found.training}}
    spec = ft.load({**ft.load(ROOT / "examples/llama-3-8b-fsdp.yaml").to_dict(), "workload": found.workload})
    assert spec.to_dict()["workload"]["training"] == found.training

"""One training step of a Llama-shaped model: FSDP2 within tensor parallelism within a pipeline (1F1B)."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module


class Block(nn.Module):
    """Attention and a gated feed-forward network, with grouped key and value heads."""

    def __init__(self, hidden: int, inner: int, heads: int, groups: int) -> None:
        super().__init__()
        self.width, self.shares = hidden // heads, (heads, groups, groups)
        self.qkv = nn.Linear(hidden, (heads + 2 * groups) * self.width, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (-1, self.width)).transpose(1, 2)
        mine = [heads.shape[1] * share // sum(self.shares) for share in self.shares]  # of this rank
        q, k, v = heads.split(mine, dim=1)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * up)


class Stage(nn.Module):
    """Layers of one stage of the pipeline; the first embeds tokens, the last has the head."""

    def __init__(self, asked: argparse.Namespace, stage: int) -> None:
        super().__init__()
        first, last = stage == 0, stage == asked.pp - 1
        self.embedding = nn.Embedding(asked.vocabulary, asked.hidden) if first else None
        self.layers = nn.ModuleList(
            Block(asked.hidden, asked.inner, asked.heads, asked.groups) for _ in range(asked.layers // asked.pp)
        )
        self.norm = nn.RMSNorm(asked.hidden) if last else None
        self.head = nn.Linear(asked.hidden, asked.vocabulary, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (
        ("layers", 80), ("hidden", 8192), ("inner", 28672), ("heads", 64), ("groups", 8), ("vocabulary", 128256),
        ("sequence", 4096), ("micro-batches", 8), ("tp", 8), ("pp", 4), ("steps", 1),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    dp = dist.get_world_size() // (asked.tp * asked.pp)
    mesh = init_device_mesh("cuda", (asked.pp, dp, asked.tp), mesh_dim_names=("pp", "dp", "tp"))
    number = mesh["pp"].get_local_rank()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        stage = Stage(asked, number)
    plan = {each: ColwiseParallel() for each in ("qkv", "gate_up")}
    plan |= {each: RowwiseParallel() for each in ("o", "down")}
    ends = {"embedding": RowwiseParallel(input_layouts=Replicate())} if stage.embedding is not None else {}
    if stage.head is not None:
        ends["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(stage, mesh["tp"], ends)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in stage.layers:
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
    fully_shard(stage, mesh=mesh["dp"], mp_policy=policy)
    stage.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4)
    pipe = PipelineStage(stage, number, asked.pp, torch.device("cuda"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(pipe, n_microbatches=asked.micro_batches, loss_fn=loss_of)
    tokens = torch.zeros(asked.micro_batches, asked.sequence, dtype=torch.long, device="cuda")
    for _ in range(asked.steps):  # the vocabulary is divided, and the loss with it
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        last = {"target": tokens, "losses": losses} if number == asked.pp - 1 else {}
        with loss_parallel():
            schedule.step(*([tokens] if number == 0 else []), **last)
        if losses:
            print("loss", sum(one.item() for one in losses))
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

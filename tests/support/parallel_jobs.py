"""A program of PyTorch: three steps of a small model made parallel in one way, compared with one process.

Its arguments are the way, the backend, the width of the model and the rows of the batch; rank 0 prints the largest
difference of any parameter of any rank, and seconds of the steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

STEPS = 3
COMPILER = "aot_eager"  # which compiles no machine code, and is quick
Pairs = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def blocks(count: int) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(Block(WIDTH) for _ in range(count)))


def train(step: Callable[[], Any], *models: nn.Module) -> None:
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in models]
    for _ in range(STEPS):
        for one in optimizers:
            one.zero_grad()
        step()
        for one in optimizers:
            one.step()


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    return lambda: nn.functional.mse_loss(model(x), y).backward()


def whole(parameter: Any) -> torch.Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def compared(one: nn.Module, many: nn.Module) -> Pairs:
    return ((a, whole(b)) for a, b in zip(one.parameters(), many.parameters(), strict=True))


def data_parallel(wrap: Callable[[nn.Module], nn.Module]) -> Pairs:
    one, many = blocks(2), wrap(blocks(2))
    train(plain(one, X, Y), one)
    mine = slice(RANK * ROWS // WORLD, (RANK + 1) * ROWS // WORLD)
    timed(lambda: train(plain(many, X[mine], Y[mine]), many))
    if isinstance(many, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(many):
            yield from compared(one, many)
    else:
        yield from compared(one, many)


def sharded(*sizes: int) -> Callable[[nn.Module], nn.Module]:
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])

    def wrap(model: Any) -> nn.Module:
        for block in model:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return wrap


def tensor_parallel(*, sequence: bool) -> Pairs:
    one, many = blocks(2), blocks(2)
    mesh = init_device_mesh("cpu", (WORLD,))
    across = Shard(0) if sequence else Replicate()
    for block in many:
        end = Replicate() if block is many[-1] else across
        plan: dict[str, Any] = {
            "up": ColwiseParallel(input_layouts=across),
            "down": RowwiseParallel(output_layouts=end),
        }
        if sequence:
            plan["norm"] = SequenceParallel(sequence_dim=0)
        parallelize_module(block, mesh, plan)
    if sequence:
        whole_rows = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(0),))
        parallelize_module(many, mesh, whole_rows)
    train(plain(one, X, Y), one)
    timed(lambda: train(plain(many, X, Y), many))
    yield from compared(one, many)


def pipeline(*, interleaved: bool) -> Pairs:
    each = 2 if interleaved else 1
    one, many = blocks(each * WORLD), blocks(each * WORLD)
    numbers = [RANK + i * WORLD for i in range(each)]
    stages = [
        PipelineStage(many[n], n, each * WORLD, torch.device("cpu"), input_args=(X[: ROWS // 2 // WORLD],))
        for n in numbers
    ]
    kind: Any = ScheduleInterleaved1F1B if interleaved else Schedule1F1B
    schedule = kind(stages if interleaved else stages[0], n_microbatches=2 * WORLD, loss_fn=nn.MSELoss())
    last = {"target": Y} if RANK == WORLD - 1 else {}
    train(plain(one, X, Y), one)
    timed(lambda: train(lambda: schedule.step(*([X] if RANK == 0 else []), **last), *(many[n] for n in numbers)))
    for n in numbers:
        yield from compared(one[n], many[n])


def experts() -> Pairs:
    """One expert a rank; row i of rank r goes to expert (i i + r) mod ranks: parts are uneven."""
    one, many = blocks(WORLD), blocks(WORLD)[RANK]
    count = ROWS // WORLD
    chosen = [torch.tensor([(i * i + r) % WORLD for i in range(count)]) for r in range(WORLD)]

    def single() -> None:
        found = torch.stack([one[int(e)](X[i]) for i, e in enumerate(torch.cat(chosen).tolist())])
        nn.functional.mse_loss(found, Y).backward()

    order = chosen[RANK].argsort(stable=True)
    sent = [int((chosen[RANK] == e).sum()) for e in range(WORLD)]
    received = [int((other == RANK).sum()) for other in chosen]
    mine = slice(RANK * count, (RANK + 1) * count)

    def step() -> None:
        there = functional.all_to_all_single_autograd(X[mine][order], received, sent, dist.group.WORLD)
        back = functional.all_to_all_single_autograd(many(there), sent, received, dist.group.WORLD)
        (nn.functional.mse_loss(back, Y[mine][order]) / WORLD).backward()

    train(single, one)
    timed(lambda: train(step, many))
    yield from compared(one[RANK], many)


def compiled() -> Pairs:
    """A compiled function whose gradients are summed by a functional collective."""
    one, many = blocks(2), blocks(2)
    mine = slice(RANK * ROWS // WORLD, (RANK + 1) * ROWS // WORLD)

    @torch.compile(backend=COMPILER, fullgraph=True)
    def mean(gradient: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(gradient * 1.0, "sum", dist.group.WORLD) / WORLD

    forward = torch.compile(many, backend=COMPILER)

    def step() -> None:
        nn.functional.mse_loss(forward(X[mine]), Y[mine]).backward()
        for parameter in many.parameters():
            parameter.grad = mean(parameter.grad)

    train(plain(one, X, Y), one)
    timed(lambda: train(step, many))
    yield from compared(one, many)


def timed(what: Callable[[], Any]) -> None:
    dist.barrier()
    begun = time.perf_counter(), time.process_time()
    what()
    dist.barrier()
    SECONDS[:] = [time.perf_counter() - begun[0], time.process_time() - begun[1]]


WAYS: dict[str, Callable[[], Pairs]] = {
    "ddp": lambda: data_parallel(nn.parallel.DistributedDataParallel),
    "fsdp1": lambda: data_parallel(lambda one: FullyShardedDataParallel(one, device_id=torch.device("cpu"))),
    "fsdp2": lambda: data_parallel(sharded(WORLD)),
    "hsdp": lambda: data_parallel(sharded(2, WORLD // 2)),
    "tp": lambda: tensor_parallel(sequence=False),
    "sp": lambda: tensor_parallel(sequence=True),
    "1f1b": lambda: pipeline(interleaved=False),
    "interleaved": lambda: pipeline(interleaved=True),
    "experts": experts,
    "compile": compiled,
}

if __name__ == "__main__":
    dist.init_process_group(sys.argv[2])
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    WIDTH, ROWS = int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(0)
    X, Y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    SECONDS: list[float] = []
    for way in sys.argv[1].split(","):
        apart = max(float((a.detach() - b.detach()).abs().max()) for a, b in WAYS[way]())
        most = torch.tensor([apart, *SECONDS], dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        if RANK == 0:
            print("way", way, f"{most[0]:.2e}", f"{most[1]:.3f}", f"{most[2]:.3f}", flush=True)
    dist.destroy_process_group()

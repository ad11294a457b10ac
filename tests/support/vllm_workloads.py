"""Workloads for a scheduler, and a loop that plays one on any scheduler. Imports the standard library alone,
because the real vLLM runs in an environment of its own."""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

EOS = 2
VOCABULARY = 32000


@dataclass(frozen=True)
class Settings:
    """Settings of a server, in vLLM's names; `blocks` in all, `windows` of the groups of layers, 0 for full."""

    blocks: int
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_model_len: int = 8192
    windows: tuple[int, ...] = (0,)
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    async_scheduling: bool = False
    pipeline_parallel_size: int = 1
    drafter: str = ""
    num_speculative_tokens: int = 0
    v2_runner: bool = False
    watermark: float = 0.0
    prefill_schedule_interval: int = 1

    @property
    def steps_in_flight(self) -> int:
        if self.async_scheduling and self.v2_runner:
            return self.pipeline_parallel_size + 1
        return 2 if self.async_scheduling and self.pipeline_parallel_size == 1 else self.pipeline_parallel_size


# what a scheduler's configuration has under the same names
SCHEDULING = (
    *("max_num_batched_tokens", "max_num_seqs", "max_model_len", "enable_chunked_prefill", "policy"),
    *("long_prefill_token_threshold", "prefill_schedule_interval"),
)


def scheduling(settings: Settings, *more: str) -> dict[str, Any]:
    """Return the settings that a scheduler takes by the same names, and `more` of them."""
    return {name: getattr(settings, name) for name in (*SCHEDULING, *more)}


@dataclass(frozen=True)
class Query:
    """One request. Its first `shared` tokens come from the stream `prefix`, the others, output too, from
    `stream`.
    """

    number: int
    arrival: float
    prompt: int
    max_tokens: int
    stop_after: int
    priority: int
    prefix: int
    shared: int
    stream: int

    def token(self, place: int) -> int:
        """Token at a place of prompt or output, whatever comes before it."""
        source = self.prefix if place < self.shared else self.stream
        return 3 + zlib.crc32(b"%d,%d" % (source, place)) % (VOCABULARY - 3)

    def sampled(self, output: int) -> int:
        """Output token number `output`, from 0."""
        return EOS if output + 1 == self.stop_after else self.token(self.prompt + output)


@dataclass(frozen=True)
class Traffic:
    """Requests that arrive at random, in conversations that grow, with prefixes shared among conversations."""

    requests: int
    rate: float
    prompt: tuple[int, int] = (50, 1500)
    output: tuple[int, int] = (20, 300)
    prefixes: int = 0
    prefix_tokens: int = 0
    turns: float = 0.0
    repeats: float = 0.0
    stops: float = 0.0
    priorities: int = 1
    seed: int = 1

    def queries(self, settings: Settings) -> list[Query]:
        draw = random.Random(self.seed)
        now = 0.0
        queries: list[Query] = []
        for number in range(self.requests):
            now += draw.expovariate(self.rate)
            chance = draw.random()
            before = draw.choice(queries) if queries else None
            if before and chance < self.turns:
                prefix, shared, stream = before.prefix, before.shared, before.stream
                prompt = before.prompt + before.max_tokens + draw.randint(10, 200)
            elif before and chance < self.turns + self.repeats:
                prefix, shared, stream, prompt = before.prefix, before.shared, before.stream, before.prompt
            else:
                prefix = draw.randrange(self.prefixes) if self.prefixes else 0
                shared = self.prefix_tokens if self.prefixes else 0
                stream = 1000 + number
                prompt = shared + draw.randint(*self.prompt)
            output = draw.randint(*self.output)
            prompt = min(prompt, settings.max_model_len - output - 1)
            stop = draw.randint(1, output) if draw.random() < self.stops else -1
            priority = draw.randrange(self.priorities)
            queries.append(Query(number, now, prompt, output, stop, priority, prefix, shared, stream))
        return queries


@dataclass(frozen=True)
class Workload:
    """Settings, traffic, and the releases that take them."""

    settings: Settings
    traffic: Traffic
    releases: tuple[str, ...] = ("0.12", "0.15", "0.19", "0.33")


NEW = ("0.33",)
WORKLOADS = {
    "chat": Workload(Settings(2588), Traffic(250, 10, turns=0.3, prefixes=4, prefix_tokens=500)),
    "tight": Workload(Settings(700), Traffic(230, 12, stops=0.3)),
    "shared": Workload(
        Settings(800), Traffic(320, 20, prompt=(10, 700), prefixes=3, prefix_tokens=1024, turns=0.2, repeats=0.2)
    ),
    "priority": Workload(
        Settings(600, policy="priority"),
        Traffic(200, 14, priorities=4, prefixes=2, prefix_tokens=300, repeats=0.1),
    ),
    "pipeline": Workload(
        Settings(700, pipeline_parallel_size=2), Traffic(200, 12, turns=0.2, prefixes=2, prefix_tokens=200)
    ),
    "asynchronous": Workload(
        Settings(650, async_scheduling=True), Traffic(250, 14, stops=0.5, turns=0.2, prefixes=2, prefix_tokens=300)
    ),
    "asynchronous-eagle": Workload(
        Settings(700, async_scheduling=True, drafter="eagle", num_speculative_tokens=3),
        Traffic(520, 20, stops=0.3, turns=0.2, repeats=0.1, prefixes=2, prefix_tokens=300),
    ),
    "ngram": Workload(
        Settings(600, drafter="ngram", num_speculative_tokens=4),
        Traffic(450, 18, stops=0.2, repeats=0.2, prefixes=2, prefix_tokens=300),
    ),
    "eagle": Workload(
        Settings(900, drafter="eagle", num_speculative_tokens=2), Traffic(400, 18, turns=0.3, repeats=0.2)
    ),
    "windows": Workload(
        Settings(1500, windows=(0, 512, 512)),
        Traffic(220, 12, prompt=(50, 2500), turns=0.3, repeats=0.2, prefixes=3, prefix_tokens=700),
    ),
    "window": Workload(
        Settings(500, windows=(1024,), max_num_batched_tokens=1024),
        Traffic(220, 12, prompt=(50, 3000), turns=0.3, repeats=0.2, prefixes=3, prefix_tokens=700),
    ),
    "windows-asynchronous": Workload(
        Settings(1200, windows=(256, 0), async_scheduling=True, max_num_batched_tokens=512),
        Traffic(220, 12, stops=0.3, turns=0.3, repeats=0.2, prefixes=3, prefix_tokens=700),
    ),
    "threshold": Workload(
        Settings(
            900, block_size=32, long_prefill_token_threshold=256, max_num_seqs=24, max_num_batched_tokens=512
        ),
        Traffic(180, 6, prompt=(50, 4000)),
    ),
    "whole-prompts": Workload(
        Settings(700, enable_chunked_prefill=False, max_num_batched_tokens=8192, enable_prefix_caching=False),
        Traffic(220, 10),
    ),
    "priority-asynchronous": Workload(
        Settings(500, policy="priority", async_scheduling=True),
        Traffic(220, 14, priorities=3, stops=0.3, repeats=0.2, prefixes=2, prefix_tokens=200),
    ),
    "priority-pipeline": Workload(
        Settings(550, policy="priority", pipeline_parallel_size=3, max_num_batched_tokens=512),
        Traffic(200, 14, priorities=3, repeats=0.2, prefixes=2, prefix_tokens=200),
    ),
    "pipeline-asynchronous": Workload(
        Settings(700, pipeline_parallel_size=2, async_scheduling=True, v2_runner=True),
        Traffic(220, 12, stops=0.3, turns=0.2, prefixes=2, prefix_tokens=200),
        NEW,
    ),
    # several requests that are preempted with chunks in flight wait together until these are back
    "pipeline-windows": Workload(
        Settings(
            920,
            max_num_batched_tokens=1024,
            windows=(0, 512),
            long_prefill_token_threshold=256,
            pipeline_parallel_size=3,
        ),
        Traffic(
            34,
            18,
            prompt=(34, 3000),
            prefixes=5,
            prefix_tokens=300,
            turns=0.4,
            repeats=0.2,
            priorities=4,
            seed=105,
        ),
        NEW,
    ),
    "pipeline-one-runner": Workload(
        Settings(600, pipeline_parallel_size=2, async_scheduling=True),
        Traffic(150, 12, stops=0.3, repeats=0.2, prefixes=2, prefix_tokens=200),
        ("0.15", "0.19"),
    ),
    "watermark": Workload(
        Settings(700, watermark=0.05, prefill_schedule_interval=4, long_prefill_token_threshold=300),
        Traffic(220, 12, turns=0.2, prefixes=2, prefix_tokens=200),
        NEW,
    ),
}


DRAFTERS = ("", "", "", "ngram", "eagle")
WINDOWS = ((0,), (0,), (0,), (0, 512), (256, 0, 0), (768,))


def drawn(seed: int) -> Workload:
    """Return a workload of mixed settings and traffic that a seed draws, within what all releases take."""
    draw = random.Random(f"workload {seed}")
    stages = draw.choice((1, 1, 1, 2, 3))
    drafter = draw.choice(DRAFTERS) if stages == 1 else ""
    windows = draw.choice(WINDOWS) if not drafter else (0,)
    ahead = stages == 1 and drafter != "ngram" and draw.random() < 0.5
    size = draw.choice((16, 16, 16, 32))
    batched = draw.choice((512, 1024, 2048, 4096))
    prefixes = draw.choice((0, 2, 5))
    prompt = (draw.randint(10, 200), draw.choice((700, 1500, 3000)))
    settings = Settings(
        draw.randint(400, 1100) * 16 // size * len(windows),
        block_size=size,
        max_num_batched_tokens=batched,
        max_num_seqs=draw.choice((16, 48, 256)),
        windows=windows,
        enable_prefix_caching=draw.random() < 0.85,
        policy=draw.choice(("fcfs", "fcfs", "priority")),
        long_prefill_token_threshold=draw.choice((0, 0, 0, 256)),
        async_scheduling=ahead,
        pipeline_parallel_size=stages,
        drafter=drafter,
        num_speculative_tokens=draw.randint(1, 5) if drafter else 0,
    )
    traffic = Traffic(
        draw.randint(200, 300) * (2 if drafter else 1),
        draw.choice((7, 12, 18)),
        prompt=prompt,
        prefixes=prefixes,
        prefix_tokens=draw.choice((200, 300, 1024)) if prefixes else 0,
        turns=draw.choice((0.0, 0.2, 0.4)),
        repeats=draw.choice((0.0, 0.2)),
        stops=draw.choice((0.0, 0.3)),
        priorities=draw.choice((1, 4)),
        seed=seed,
    )
    return Workload(settings, traffic)


def workload(name: str) -> Workload:
    """Return a workload by name: one of `WORKLOADS`, or `drawn-N`."""
    return drawn(int(name[6:])) if name.startswith("drawn-") else WORKLOADS[name]


class Player(Protocol):
    """A scheduler under test."""

    free_blocks: int

    def add(self, query: Query) -> None: ...

    def has_work(self) -> bool: ...

    def schedule(self) -> tuple[list[tuple[int, int]], list[int], Any]:
        """Return the (request, tokens) of a step in order, the preempted requests, and a handle of the step."""

    def update(self, step: Any) -> None: ...


@dataclass
class Log:
    """Decisions of a scheduler: (request, tokens) in order, preempted requests, free blocks, of every step."""

    steps: list[tuple[list[tuple[int, int]], list[int], int]] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [
            " ".join(f"{request}:{tokens}" for request, tokens in scheduled)
            + " | "
            + " ".join(map(str, preempted))
            + f" | {free}"
            for scheduled, preempted, free in self.steps
        ]

    def recorded(self, every: int = 25) -> list[str]:
        """Lines that tell this log from others: steps, preemptions, and a checksum of every so many steps."""
        lines = self.lines()
        sums = [
            f"{zlib.crc32(chr(10).join(lines[at : at + every]).encode()):08x}"
            for at in range(0, len(lines), every)
        ]
        head = f"{len(lines)} steps, {sum(len(preempted) for _, preempted, _ in self.steps)} preempted"
        return [head, *(" ".join(sums[at : at + 12]) for at in range(0, len(sums), 12))]


def sections(text: str) -> dict[str, list[str]]:
    """Lines of each workload of a printed record, by its name."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("= "):
            lines = found[line[2:]] = []
        elif found:
            lines.append(line)
    return found


def accepted(query: int, tokens: int, drafts: int) -> int:
    """Drafts that the target accepts after `tokens` known tokens: three in five are right."""
    count = 0
    while count < drafts and zlib.crc32(b"%d,%d" % (query, tokens + count)) % 5 < 3:
        count += 1
    return count


def play(player: Player, settings: Settings, queries: Iterable[Query], *, fills_past_done: bool) -> Log:
    """Play requests on a scheduler as the engine's loop does, under a clock of its own, and log the decisions.

    `fills_past_done`: the queue of batches is filled even when its oldest is done (from 0.33 on).
    """
    log = Log()
    coming = deque(queries)
    queue: deque[tuple[float, Any]] = deque()
    stages = [0.0] * settings.pipeline_parallel_size
    now = 0.0
    while True:
        while coming and coming[0].arrival <= now:
            player.add(coming.popleft())
        if player.has_work():
            scheduled, preempted, step = player.schedule()
            log.steps.append((scheduled, sorted(preempted), player.free_blocks))
            tokens = sum(count for _, count in scheduled)
            done = now
            if tokens:
                for stage, free in enumerate(stages):
                    done = stages[stage] = max(done, free) + (0.005 + tokens * 2e-5) / len(stages)
            queue.append((done, step))
            if len(queue) < settings.steps_in_flight:
                if fills_past_done and (tokens or player.has_work()):
                    continue
                if not fills_past_done and tokens and queue[0][0] > now:
                    continue
        elif not queue:
            if not coming:
                return log
            now = coming[0].arrival
            continue
        done, step = queue.popleft()
        now = max(now, done)
        player.update(step)

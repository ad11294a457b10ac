"""Forms of kernels shape by shape in plain numbers, grids corner by corner, files of measurements row by row."""

from __future__ import annotations

import gzip
import itertools
import math
import random

import numpy as np
import pytest

from fabrictwin import catalog
from fabrictwin.workload.operators import attention, experts, families, fitting, products, residuals, tables
from fabrictwin.workload.operators.families import FAMILIES, FORMATS
from fabrictwin.workload.operators.measurements import Measured, read_measured
from fabrictwin.workload.operators.products import Chip, Format

CHIP = Chip(100, 1e9, 3e6)


def drawn(bounds, seed):
    """Constants between their bounds."""
    draw = random.Random(seed)
    return {name: low * (high / low) ** draw.random() for name, (low, _, high) in bounds.items()}


def waves_of(share: float, load: float) -> float:
    """Whole waves of all SMs, and their plain share that is one at least, weighed."""
    return share * math.ceil(load) + (1 - share) * max(load, 1.0)


def joined(compute: float, memory: float, power: float, longer: float = 1.0) -> float:
    """The larger, rounded off by cubes, and what a kernel of milliseconds loses to the clock."""
    body = (compute**3 + memory**3) ** (1 / 3) * longer
    return body * (1 + power * body / (body + 1000))


TILES = [(64, 32), (64, 64), (64, 128), (128, 32), (128, 64), (64, 256), (128, 128), (128, 192), (128, 256),
         (256, 128), (256, 256)]  # fmt: skip
SHAPES = [(1, 256, 256, 1), (7, 4096, 512, 1), (300, 700, 1100, 1), (4096, 4096, 4096, 1), (16384, 1024, 8192, 1),
          (128, 128, 128, 64), (2560, 2816, 65536, 1), (65, 257, 63, 3)]  # fmt: skip


def product(c, form, m, n, k, batch):
    best = math.inf
    turns = math.ceil(k * form.operand_bytes / 128)
    for (rows, columns), split in itertools.product(TILES, (1, 2, 4, 8, 16)):
        if split > turns:
            continue
        tiles = batch * math.ceil(m / rows) * math.ceil(n / columns)
        narrow = 1 + c["narrow"] * (1 / rows + 1 / columns)
        operations = 2 * rows * columns * 128 / form.operand_bytes * narrow
        turn = max(operations / (c["peak"] * 1e9 / 100), c["step"])
        took = waves_of(c["waves"], tiles * split / 100) * (math.ceil(turns / split) * turn + c["tile"])
        if split > 1:  # partial sums of 4 bytes are written and read
            took += c["split"] + 2 * 4 * split * tiles * rows * columns / (c["memory"] * 3e6)
        best = min(best, took)
    moved = batch * (form.operand_bytes * m * k + form.weight_bytes * k * n + 2 * m * n) / (c["memory"] * 3e6)
    return c["launch"] + joined(best, moved, c["power"])


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("seed", range(6))
def test_products_are_their_best_tiles_and_splits(name, seed):
    form, c = FORMATS[name], drawn(products.BOUNDS, seed)
    shapes = np.array(SHAPES, float)
    expected = [product(c, form, *shape) for shape in SHAPES]
    assert products.product_us(c, CHIP, form, shapes) == pytest.approx(expected, rel=1e-9)
    alone = [product(c, form, m, n, k, 1) for m, n, k, _ in SHAPES]
    assert products.product_us(c, CHIP, form, shapes[:, :3]) == pytest.approx(alone, rel=1e-9)
    cast = [
        c["cast"] + c["single"] * (m == 1) + c["row"] * m + (2 + form.operand_bytes) * m * k / (c["memory"] * 3e6)
        if form.cast
        else 0.0
        for m, _, k, _ in SHAPES
    ]
    assert products.cast_us(c, CHIP, form, shapes[:, :3]) == pytest.approx(cast, rel=1e-9)
    both = [a + b for a, b in zip(alone, cast, strict=True)]
    assert products.linear_us(c, CHIP, form, shapes[:, :3]) == pytest.approx(both, rel=1e-9)


def test_formats_count_the_bytes_of_their_scales():
    assert {name: (form.operand_bytes, form.weight_bytes, form.cast) for name, form in FORMATS.items()} == {
        "bf16": (2, 2, False), "fp8": (1, 1, True), "fp8-block": (1.03125, 1.03125, True),
        "fp4": (0.5625, 0.5625, True), "mxfp4": (2, 0.53125, False), "marlin": (2, 0.53125, False),
        "marlin-fp4": (2, 0.5625, False), "marlin-int4": (2, 0.515625, False),
    }  # fmt: skip
    assert products.WITHOUT_CAST == (
        "launch", "peak", "tile", "narrow", "memory", "step", "waves", "power", "split"
    )  # fmt: skip
    for bounds in (products.BOUNDS, attention.PROMPT_BOUNDS, attention.DECODE_BOUNDS, experts.WIDENED_BOUNDS):
        assert all(0 < low < first < high for low, first, high in bounds.values())


PROMPTS = [(1, 1, 8, 8), (3, 128, 32, 8), (8, 129, 32, 4), (2, 5000, 64, 8), (64, 40, 16, 1), (1, 16384, 128, 128)]


def prompt_tiles(generation: int, tokens: int, heads: int, kv_heads: int) -> tuple[float, int, int]:
    """Tiles of 128 queries by 128 keys, rows of blocks and the longest row of one sequence, tile by tile."""
    together = 2 if generation == 10 else 1
    rows = [
        range(first, min(first + together, math.ceil(tokens / 128)))
        for first in range(0, math.ceil(tokens / 128), together)
    ]
    tiles = [len(row) * min((row.start // together + 1) * together, math.ceil(tokens / 128)) for row in rows]
    ways, packed = len(rows) * heads, math.ceil(tokens * heads / kv_heads / 128) * kv_heads
    if generation == 9 or tokens == 1:
        ways = min(ways, packed)
    return sum(tiles) / len(rows) * ways, ways, max(tiles)


def splits_of(ways: float, longest: int) -> int:
    """FlashAttention 3's rule on 100 SMs."""
    if ways >= 80 or longest <= 4:
        return 1
    return next((parts for parts in range(1, longest) if ways * parts >= 85), longest)


@pytest.mark.parametrize("generation", [0, 9, 10])
@pytest.mark.parametrize("name", ["bf16", "fp8"])
@pytest.mark.parametrize("seed", range(6))
def test_attention_is_tiles_of_queries_and_keys_or_what_is_moved_and_the_cache_written(name, seed, generation):
    form, c, shapes = FORMATS[name], drawn(attention.PROMPT_BOUNDS, seed), np.array(PROMPTS, float)
    expected = []
    for sequences, tokens, heads, kv_heads in PROMPTS:
        tiles, ways, longest = prompt_tiles(generation, tokens, heads, kv_heads)
        parts = splits_of(sequences * ways, longest) if generation == 9 else 1
        waves = waves_of(c["waves"], sequences * ways * parts / 100)
        longest_us = (
            max(tiles / ways / parts * waves, longest / parts) * 2 * 128 * 128 * 256 / (c["peak"] * 1e9 / 100)
        )
        compute = longest_us + waves * c["row"] + (c["split"] if parts > 1 else 0)
        cached, kept = sequences * tokens * kv_heads * 256, form.operand_bytes
        moved = cached * kept + sequences * tokens * heads * 128 * (kept + 2)
        body = joined(compute, moved / min(c["moved"] * 100, 3e6), c["power"])
        writers = sequences * tokens * (min(kv_heads * 128, 512) / 512) ** 1.25
        written = cached * (2 + kept) / (c["write"] * 3e6) + writers * c["token"]
        expected.append(c["launch"] + body + written)
    chip = Chip(100, 1e9, 3e6, generation)
    assert FAMILIES["prompts"].time_us(c, chip, form, shapes) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["bf16", "fp8"])
@pytest.mark.parametrize("seed", range(6))
def test_decodes_are_the_cache_that_is_read_and_waves_of_heads(name, seed):
    form, shapes = FORMATS[name], np.array(PROMPTS, float)
    c, expected = drawn(attention.DECODE_BOUNDS, seed), []
    for sequences, tokens, heads, kv_heads in PROMPTS:
        read = sequences * tokens * kv_heads * 256 * form.operand_bytes
        rows = sequences * kv_heads
        cold = c["cold"] * min(1, read / min(max(rows, 1), 100) / 32768)
        waves = c["wave"] * math.ceil(rows / 100) + c["row"] * sequences * heads / 100
        expected.append(c["launch"] + waves + cold + read / (c["memory"] * 3e6))
    assert FAMILIES["decodes"].time_us(c, CHIP, form, shapes) == pytest.approx(expected, rel=1e-9)


# tokens, hidden, inner, experts a token, experts in all, ranks, matrices up
EXPERTS = [(1, 4096, 1536, 8, 128, 1, 2), (64, 4096, 1535, 8, 128, 8, 2), (16384, 2048, 768, 4, 60, 128, 1),
           (300, 1024, 2688, 22, 512, 16, 1), (5, 256, 64, 1, 4, 8, 2)]  # fmt: skip


@pytest.mark.parametrize("generation", [0, 9, 10])
@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("seed", range(6))
def test_experts_are_their_blocks_their_weights_and_rows_moved(name, seed, generation):
    """Blocks are the best, but Triton's on Hopper and Marlin's, by what experts of the rank get of all choices."""
    c, size, expected = drawn(experts.BOUNDS, seed), FORMATS[name].operand_bytes, []
    triton = generation == 9 and name == "mxfp4"
    columns = 256 if triton else 128
    for tokens, hidden, inner, top_k, count, ranks, ups in EXPERTS:
        rows = max(tokens * top_k / ranks, 1)
        met = min(max(count / ranks, 1), rows)
        best, blocks = math.inf, [16, 32, 64, 128]
        own = max(round(count / ranks), 1)
        if triton:
            blocks = [next((block for block in blocks if block >= tokens * top_k // own), 128)]
        elif name.startswith("marlin"):
            blocks = [next((block for block in (8, 16, 32, 48, 64) if tokens * top_k / own / block < 0.9), 64)]
        for block in blocks:
            took = 0.0
            for n, k in ((ups * inner, hidden), (hidden, inner)):
                operations = 2 * block * columns * 128 / size * (1 + c["narrow"] * (1 / block + 1 / columns))
                turn = max(operations / (c["peak"] * 1e9 / 100), c["step"])
                waves = max(math.ceil(rows / met / block) * met * math.ceil(n / columns) / 100, 1)
                took += waves * (math.ceil(k * size / 128) * turn + c["tile"])
            best = min(best, took)
        memory = met * (ups + 1) * inner * hidden * FORMATS[name].weight_bytes / (c["memory"] * 3e6)
        body = joined(best, memory, c["power"], 1 + c["sectors"] * (inner * size % 32 > 0))
        moved = 2 * tokens * top_k * (c["hidden"] * hidden + c["inner"] * ups / 2 * inner) / 3e6
        expected.append(c["launch"] + body + moved + c["expert"] * met)
    even = np.array([(*row, 0.0) for row in EXPERTS], float)
    chip = Chip(100, 1e9, 3e6, generation)
    assert FAMILIES["experts"].time_us(c, chip, FORMATS[name], even) == pytest.approx(expected, rel=1e-9)


def busiest_by_hand(tokens, top_k, count, ranks, exponent):
    """Return (experts met, blocks by size) of the rank with most rows, the mean of five draws, token by token."""
    draws, own, found = np.random.default_rng(0).random((5, count)), count // ranks, []
    low, high = (1, max(0.8 * tokens, 1)) if tokens * top_k > count else (0.01, 2)
    for draw in draws:
        law = [((high ** (1 - exponent) - low ** (1 - exponent)) * u + low ** (1 - exponent)) for u in draw]
        weights = [value ** (1 / (1 - exponent)) for value in law]
        loads = [min(round(w / sum(weights) * tokens * top_k), tokens) for w in weights]
        groups = [loads[r * own : (r + 1) * own] for r in range(ranks)]
        left, turn = tokens * top_k - sum(loads), 0
        while left:  # one token at a time, rank by rank
            group = groups[turn % ranks]
            turn += 1
            place = group.index(min(group) if left > 0 else max(group))
            if 0 <= group[place] + (1 if left > 0 else -1) <= tokens:
                group[place] += 1 if left > 0 else -1
                left += -1 if left > 0 else 1
        most = max(groups, key=sum)
        blocks = [max(sum(-(-load // size) for load in most), 1) for size in (16, 32, 64, 128)]
        found.append([max(sum(load > 0 for load in most), 1), *blocks])
    return np.mean(found, axis=0)


@pytest.mark.parametrize(
    ("tokens", "top_k", "count", "ranks"),
    [(1, 8, 128, 1), (1, 8, 128, 8), (2, 4, 60, 4), (64, 2, 8, 8), (300, 8, 128, 4),
     (4096, 22, 512, 16), (16384, 2, 8, 8)],
)  # fmt: skip
@pytest.mark.parametrize("exponent", [1.01, 1.2])
def test_the_busiest_rank_is_that_of_tokens_dealt_by_hand(tokens, top_k, count, ranks, exponent):
    shape = np.array([[tokens, 4096, 1536, top_k, count, ranks, 2, exponent]], float)
    met, blocks = experts.busiest_ranks(shape, (16, 32, 64, 128))
    expected = busiest_by_hand(tokens, top_k, count, ranks, exponent)
    assert [met[0], *blocks[0]] == pytest.approx(expected, rel=0.02)


def test_marlin_sorts_tokens_by_all_experts():
    first = {name: first for name, (_, first, _) in experts.WIDENED_BOUNDS.items()}
    shape = np.array([[64, 4096, 2048, 4, 128, 1, 2, 0.0]], float)
    with_sort, without = (
        experts.experts_us(constants, CHIP, FORMATS["marlin"], shape)[0]
        for constants in (first, {name: first[name] for name in experts.BOUNDS})
    )
    assert with_sort - without == pytest.approx(128 * first["sort"])


def test_uneven_tokens_make_the_busiest_rank_slower_the_more_ranks_there_are():
    first = {name: first for name, (_, first, _) in experts.BOUNDS.items()}

    def took(ranks, exponent):
        shape = np.array([[8192, 4096, 14336, 2, 8, ranks, 2, exponent]], float)
        return float(experts.experts_us(first, CHIP, FORMATS["bf16"], shape)[0])

    uneven = [took(ranks, 1.2) / took(ranks, 0.0) for ranks in (1, 2, 4, 8)]
    assert uneven == sorted(uneven)
    assert uneven[0] == pytest.approx(1, rel=0.03)
    assert 1.5 < uneven[-1] < 4  # of two choices among eight, one expert in all gets up to half the rows


def test_residuals_lie_over_these_logarithms():
    row = np.array([[8.0, 1024, 32, 4]])
    assert families._attention_points(row).tolist() == [[10, 8, 3]]
    assert families._decode_points(row).tolist() == [[10, 5, 3]]
    assert families._expert_points(np.array([[16.0, 9, 64, 8, 128, 4, 2, 1.2]])).tolist() == [[4, 2, 6, 4]]
    assert FAMILIES["products"].points(np.array([[2.0, 8, 64]])).tolist() == [[1, 3, 6]]
    assert {name: family.peak for name, family in FAMILIES.items()} == {
        "products": "", "prompts": "bf16", "decodes": "bf16", "experts": "",
    }  # fmt: skip
    for family in FAMILIES.values():
        assert all((np.diff(axis) > 0).all() for axis in family.axes)


# ---------------------------------------------------------------------- grids

AXES = (np.array([0.0, 1, 3]), np.array([0.0, 2]), np.array([1.0, 2, 4, 8]))


def linear(axis, value):
    """[(place, weight)] of the two points around a value, at the edge beyond it."""
    value = min(max(value, axis[0]), axis[-1])
    at = max(i for i in range(len(axis) - 1) if axis[i] <= value)
    share = (value - axis[at]) / (axis[at + 1] - axis[at])
    return [(at, 1 - share), (at + 1, share)]


def test_a_grid_is_linear_between_its_points_and_flat_beyond():
    draw = np.random.default_rng(4)
    steps = draw.integers(-100, 100, (3, 2, 4)).astype(np.int8)
    grid = residuals.ResidualGrid(AXES, steps)
    points = [*draw.uniform(-1, 9, (60, 3)), *itertools.product([0.0, 1, 3], [0.0, 2], [1.0, 2, 8])]
    for point in points:
        expected = sum(
            a * b * c * steps[i, j, k] for (i, a), (j, b), (k, c) in itertools.product(*map(linear, AXES, point))
        )
        assert grid.at_one(*point) == pytest.approx(math.exp(0.015 * expected), rel=1e-9)
        assert grid.at(np.array([point]))[0] == pytest.approx(math.exp(0.015 * expected), rel=1e-9)
    flat = residuals.ResidualGrid((np.array([5.0]), AXES[0]), np.array([[3, 6, 9]], np.int8))
    assert np.log(flat.at(np.array([[9.0, 0.5], [1.0, 2.0]]))) == pytest.approx([0.015 * 4.5, 0.015 * 7.5])


def test_a_fitted_grid_solves_its_equations():
    """Four rounds of weighted squares, each solved as a dense system."""
    draw = np.random.default_rng(7)
    axes = (AXES[0], AXES[2])
    points = np.column_stack([draw.uniform(-0.5, 3.5, 80), draw.uniform(0, 9, 80)])
    off = draw.normal(0, 0.4, 80)
    off[:3] = 9.0
    rows = np.zeros((80, 12))
    for at, point in enumerate(points):
        for (i, a), (k, c) in itertools.product(*map(linear, axes, point)):
            rows[at, 4 * i + k] += a * c
    pulls = 0.05 * np.eye(12)
    for i, k in itertools.product(range(3), range(4)):
        for other in ([4 * (i + 1) + k] if i < 2 else []) + ([4 * i + k + 1] if k < 3 else []):
            one = np.zeros(12)
            one[4 * i + k], one[other] = 1, -1
            pulls += 0.1 * np.outer(one, one)
    trust = np.ones(80)
    for _ in range(4):
        values = np.linalg.solve(pulls + (rows * trust[:, None]).T @ rows, rows.T @ (trust * off))
        trust = 0.01 / np.maximum(np.abs(rows @ values - off), 0.01)
    found = residuals.fit_residuals(axes, points, off)
    assert found.steps.ravel().tolist() == pytest.approx(np.round(values / 0.015), abs=1)
    assert (found.steps.ravel() == np.round(values / 0.015)).mean() >= 0.9
    assert [axis.tolist() for axis in found.axes] == [axis.tolist() for axis in axes]
    steep = residuals.fit_residuals((AXES[0],), np.full((50, 1), 1.0), np.full(50, 5.0))
    assert steep.steps[1] == 127
    assert residuals.fit_residuals((AXES[0],), np.full((50, 1), 1.0), np.full(50, -5.0)).steps[1] == -127


# ---------------------------------------------------------------------- fits


@pytest.mark.parametrize("seed", range(3))
def test_constants_are_found_where_most_times_are(seed):
    """A fifth of the times are thrice as long, the least of sqrt(e² + 0.01²) follows by 0.01 / sqrt(15)."""
    draw = np.random.default_rng(seed)
    x = np.exp2(draw.uniform(0, 10, 200))
    measured = (3.7 + 0.21 * x) * np.where(np.arange(200) % 5 == 0, 3.0, 1.0)
    bounds = {"base": (0.1, 1.0, 100.0), "slope": (0.001, 1.0, 10.0)}
    found = fitting.fit_constants(lambda c: c["base"] + c["slope"] * x, measured, bounds, seed=seed)
    longer = math.exp(0.01 / math.sqrt(15))  # four fifths of e / sqrt(e² + 0.01²) are one fifth
    assert found == {
        "base": pytest.approx(3.7 * longer, rel=1e-3),
        "slope": pytest.approx(0.21 * longer, rel=1e-3),
    }
    assert all(value == float(f"{value:.4g}") for value in found.values())
    tight = {"base": (0.1, 1.0, 2.0), "slope": (0.001, 1.0, 10.0)}
    bound = fitting.fit_constants(lambda c: c["base"] + c["slope"] * x, measured, tight, seed=seed)
    assert bound["base"] == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize("count", [1, 5, 29])
def test_points_far_apart_are_each_the_farthest_of_those_left(count):
    points = np.random.default_rng(9).normal(0, 1, (30, 2))
    chosen = fitting.spread_out(points, count, seed=4).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == count
    draws = np.random.default_rng(4)
    moved = points + draws.normal(0, 0.3, points.shape)
    greedy = [int(draws.integers(30))]
    while len(greedy) < count:
        rest = [i for i in range(30) if i not in greedy]
        greedy.append(max(rest, key=lambda i: min(math.dist(moved[i], moved[j]) for j in greedy)))
    assert chosen == sorted(greedy)
    assert fitting.spread_out(points, 30).tolist() == fitting.spread_out(points, 99).tolist() == list(range(30))


def test_a_table_is_fitted_with_and_without_what_is_left():
    chip = tables.chip_of("h100-sxm", "decodes", "bf16")
    draw = np.random.default_rng(2)
    shapes = np.exp2(
        np.column_stack([draw.uniform(0, 8, 60), draw.uniform(6, 14, 60), np.full(60, 5), np.full(60, 3)])
    )
    true = {name: first for name, (_, first, _) in attention.DECODE_BOUNDS.items()}
    times = FAMILIES["decodes"].time_us(true, chip, FORMATS["bf16"], shapes)
    found = tables.fit_table("h100-sxm", Measured("decodes", "bf16", shapes, 1.3 * times))
    assert (found.family, found.of, found.type) == ("decodes", "h100-sxm", "bf16")
    assert np.median(np.abs(found.time_us(chip, shapes) / (1.3 * times) - 1)) < 0.02
    plain = tables.fit_table("h100-sxm", Measured("decodes", "bf16", shapes, times), residuals=False)
    assert plain.residuals is None
    assert plain.factor(shapes).tolist() == [1.0] * 60
    assert plain.factor_of(3.0, 4.0, 5.0) == 1.0
    assert np.median(np.abs(plain.time_us(chip, shapes) / times - 1)) < 0.02
    form = FAMILIES["decodes"].time_us(plain.constants, chip, FORMATS["bf16"], shapes)
    assert plain.time_us(chip, shapes).tolist() == form.tolist()
    one = shapes[7]
    factor = found.factor(shapes)[7]
    assert found.factor_of(one[1], one[0] * one[3], one[2] / one[3]) == pytest.approx(factor)
    assert found.time_us(chip, shapes)[7] == pytest.approx(
        factor * FAMILIES["decodes"].time_us(found.constants, chip, FORMATS["bf16"], shapes)[7]
    )


@pytest.mark.parametrize(
    ("gpu", "family", "kind", "without"),
    [("h100-sxm", "products", "bf16", {"cast", "row", "single"}), ("h100-sxm", "products", "fp8", {"single"}),
     ("gb200", "products", "fp8", set()), ("gb200", "products", "fp4", {"single"}),
     ("h100-sxm", "prompts", "fp8", set()), ("gb200", "prompts", "fp8", {"split"})],
)  # fmt: skip
def test_a_table_has_the_constants_of_its_kernels_alone(gpu, family, kind, without):
    """No cast in 16 bits, one row alone on Blackwell in fp8, rows of keys in parts on Hopper."""
    bounds = {"products": products.BOUNDS, "prompts": attention.PROMPT_BOUNDS}[family]
    shapes = np.exp2(np.random.default_rng(3).uniform(8, 12, (30, 3 if family == "products" else 4))).round()
    made = tables.fit_table(gpu, Measured(family, kind, shapes, np.full(30, 50.0)), residuals=False)
    assert tuple(made.constants) == tuple(name for name in bounds if name not in without)


@pytest.mark.parametrize(
    ("family", "kind", "peak"),
    [("products", "bf16", "bf16"), ("products", "fp8-block", "fp8"), ("experts", "fp8/balanced", "fp8"),
     ("decodes", "fp8", "bf16"), ("products", "fp4", "bf16")],
)  # fmt: skip
def test_a_data_sheet_is_in_microseconds_and_bytes(family, kind, peak):
    entry = catalog.gpu("h100-sxm")
    chip = tables.chip_of("h100-sxm", family, kind)
    assert chip.sms == entry.sm_count.value == 132
    assert chip.operations_per_us == pytest.approx(entry.peak_flops[peak].value / 1e6)
    assert chip.bytes_per_us == pytest.approx(entry.memory_bandwidth.value / 8 / 1e6)


def test_the_nearest_gpu_is_of_its_generation_and_has_like_rates():
    def unlike(a, b):
        one, two = catalog.gpu(a), catalog.gpu(b)
        pairs = [
            (gpu.memory_bandwidth.value, gpu.peak_flops["bf16"].value, gpu.sm_count.value) for gpu in (one, two)
        ]
        apart = abs(tables.generation(a) - tables.generation(b))
        return apart, sum(abs(math.log(x / y)) for x, y in zip(*pairs, strict=True))

    names = ["a100-80", "h100-sxm", "h200-sxm", "gb200", "b200-sxm"]
    for gpu in (*names, "h100-hbm2e", "gb300", "a100-40"):
        others = [name for name in names if name != gpu]
        assert tables.nearest(gpu, others) == min(others, key=lambda other: (*unlike(gpu, other), other))
        if gpu in names:
            assert tables.nearest(gpu, names) == gpu
    assert [tables.generation(gpu) for gpu in names] == [8, 9, 9, 10, 10]


# ---------------------------------------------------------------------- files


def test_files_of_experts_and_attention_are_read_row_by_row(tmp_path):
    path = tmp_path / "t.csv.gz"
    text = (
        "moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency_ms\n"
        "fp8,64,4096,1536,8,128,2,4,balanced,0.5\n"
        "nvfp4,1,2688,1856,6,128,4,1,power_law_1.2,0.25\n"
        "fp8,64,4096,1536,8,128,2,0,balanced,0.5\n"
        "fp8,16,4096,1536,8,128,1,4,balanced,0\n"
        "bfloat16,64,4096,1536,8,128,1,1,balanced,2\n"
    )
    path.write_bytes(gzip.compress(text.encode()))
    found = {one.type: (one.family, one.shapes.tolist(), one.times_us.tolist()) for one in read_measured(path)}
    assert found == {
        "fp8/balanced": ("experts", [[64, 4096, 768, 8, 128, 4, 2, 0]], [500]),
        "fp4/power_law_1.2": (
            "experts",
            [[1, 2688, 464, 6, 128, 1, 1, 1.2]],
            [250],
        ),  # Nemotron 3 has one matrix up
        "bf16/balanced": ("experts", [[64, 4096, 1536, 8, 128, 1, 2, 0]], [2000]),
    }
    path = tmp_path / "t.csv"
    path.write_text(
        "batch_size,isl,num_heads,num_key_value_heads,kv_cache_dtype,step,latency\n"
        "4,1024,32,8,bfloat16,0,0.5\n4,1,32,8,bfloat16,4095,0.125\n2,1,32,8,fp8,7,1\n0,9,32,8,fp8,0,1\n"
    )
    rows = [(one.family, one.type, one.shapes.tolist(), one.times_us.tolist()) for one in read_measured(path)]
    assert rows == [
        ("prompts", "bf16", [[4, 1024, 32, 8]], [500]),
        ("decodes", "bf16", [[4, 4096, 32, 8]], [125]),
        ("decodes", "fp8", [[2, 8, 32, 8]], [1000]),
    ]


@pytest.mark.parametrize(
    ("m", "n", "k", "kept"),
    [
        (1, 256, 256, True),
        (0, 256, 256, False),
        (0.5, 256, 256, False),
        (1, 255, 256, False),
        (1, 256, 255, False),
    ],
)
def test_products_have_rows_and_sides_that_show_more_than_launch(tmp_path, m, n, k, kept):
    path = tmp_path / "t.csv"
    path.write_text(f"gemm_dtype,m,n,k,latency_ms\nother,{m},{n},{k},1\n")
    found = read_measured(path)
    assert [(one.family, one.type) for one in found] == ([("products", "other")] if kept else [])


def test_columns_in_parquet_are_read_as_text(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    rows = {"gemm_dtype": ["fp8", "fp8"], "m": [2, 4], "n": [512, 256], "k": [256, 1024], "latency": [0.5, 1.5]}
    parquet.write_table(pyarrow.table(rows), path)
    (one,) = read_measured(path)
    assert (one.family, one.type) == ("products", "fp8")
    assert one.shapes.tolist() == [[2, 512, 256], [4, 256, 1024]]
    assert one.times_us.tolist() == [500, 1500]


def test_formats_are_found_by_their_first_word():
    assert tables.format_of("fp8/balanced") == tables.format_of("fp8") == Format(1.0, cast=True)

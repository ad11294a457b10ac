"""Forms of kernels against what their mechanisms say, their fit, and measured rows where those are."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.workload.operators import attention, experts, measurements, products
from fabrictwin.workload.operators.families import FAMILIES
from fabrictwin.workload.operators.fitting import fit_constants, spread_out
from fabrictwin.workload.operators.measurements import Measured, read_measured
from fabrictwin.workload.operators.products import BOUNDS, Chip, Format, linear_us, product_us
from fabrictwin.workload.operators.residuals import STEP, fit_residuals
from fabrictwin.workload.operators.tables import chip_of, fit_table, generation, nearest, table

CHIP = Chip(100, 1e9, 3e6)
PLAIN, CAST = Format(2.0, cast=False), Format(1.0, cast=True)
FIRST = {name: first for name, (_, first, _) in BOUNDS.items()}


def us(m: float, n: float, k: float, form: Format = PLAIN, **changed: float) -> float:
    return float(product_us({**FIRST, **changed}, CHIP, form, np.array([[m, n, k]], float))[0])


def test_a_product_never_beats_its_launch_its_bytes_or_its_peak():
    for m, n, k in ((1, 256, 256), (1, 16384, 16384), (4096, 4096, 4096), (300, 700, 1100)):
        floor = max(2.0 * m * n * k / 1e9 / FIRST["peak"], 2.0 * (m * n + m * k + n * k) / 3e6 / FIRST["memory"])
        assert us(m, n, k) >= FIRST["launch"] + floor


def test_tiles_that_do_not_fill_the_last_wave_cost_a_whole_one():
    """100 SMs and tiles of 256 × 256: 10 × 10 fill them once, and a tenth more takes more than that."""
    whole, shared = (
        us(2560, 2816, 65536, waves=waves) / us(2560, 2560, 65536, waves=waves) for waves in (0.99, 0.01)
    )
    assert shared == pytest.approx(1.1, abs=0.02)
    assert whole > shared + 0.05


def test_splitting_k_helps_few_tiles_until_it_costs_too_much():
    dear = us(64, 256, 65536, split=1e9)
    assert us(64, 256, 65536, split=1.0) < 0.5 * dear
    assert us(8192, 8192, 4096, split=1.0) == pytest.approx(us(8192, 8192, 4096, split=1e9), rel=0.01)


def test_several_products_in_one_kernel_share_its_launch_and_fill_the_sms():
    one = np.array([[128, 128, 128, 1]], float)
    many = np.array([[128, 128, 128, 64]], float)
    single, together = (float(product_us(FIRST, CHIP, PLAIN, shapes)[0]) for shapes in (one, many))
    assert single == us(128, 128, 128)
    assert together < 64 * single / 8


def test_a_linear_layer_in_8_bits_casts_its_input():
    shape = np.array([[4096, 1024, 8192]], float)
    cast = float((linear_us(FIRST, CHIP, CAST, shape) - product_us(FIRST, CHIP, CAST, shape))[0])
    moved = 3 * 4096 * 8192 / (FIRST["memory"] * 3e6)
    assert cast == pytest.approx(FIRST["cast"] + FIRST["row"] * 4096 + moved)
    assert linear_us(FIRST, CHIP, PLAIN, shape)[0] == product_us(FIRST, CHIP, PLAIN, shape)[0]


def test_constants_are_found_again_from_times_that_they_made():
    draws = np.random.default_rng(3)
    shapes = np.exp2(draws.uniform(4, 14, (300, 3))).round()
    true = {**FIRST, "launch": 5.0, "peak": 0.6, "memory": 0.7, "split": 6.0}
    bounds = {name: BOUNDS[name] for name in products.WITHOUT_CAST}
    times = product_us(true, CHIP, PLAIN, shapes)
    found = fit_constants(lambda at: product_us(at, CHIP, PLAIN, shapes), times, bounds)
    assert found["launch"] == pytest.approx(5.0, rel=0.03)
    assert found["peak"] == pytest.approx(0.6, rel=0.03)
    assert found["memory"] == pytest.approx(0.7, rel=0.03)
    off = product_us(found, CHIP, PLAIN, shapes) / times - 1
    assert np.quantile(np.abs(off), 0.95) < 0.03


def test_chosen_shapes_are_far_apart_and_the_same_each_time():
    points = np.random.default_rng(0).normal(0, 1, (500, 3))
    chosen = spread_out(points, 40)
    assert (chosen == spread_out(points, 40)).all()
    assert len(set(chosen.tolist())) == 40
    apart = np.linalg.norm(points[chosen][:, None] - points[chosen], axis=2)[~np.eye(40, dtype=bool)]
    first = np.linalg.norm(points[:40][:, None] - points[:40], axis=2)[~np.eye(40, dtype=bool)]
    assert apart.min() > 2 * first.min()


def test_a_grid_meets_a_smooth_residual_and_is_flat_beyond_its_edge():
    draws = np.random.default_rng(1)
    points = draws.uniform(0, 8, (4000, 2))
    axes = (np.linspace(0, 8, 9), np.linspace(0, 8, 9))
    grid = fit_residuals(axes, points, 0.05 * points[:, 0] - 0.02 * points[:, 1])
    tried = draws.uniform(0.5, 7.5, (200, 2))
    assert np.log(grid.at(tried)) == pytest.approx(0.05 * tried[:, 0] - 0.02 * tried[:, 1], abs=2 * STEP)
    assert grid.at(np.array([[-3.0, 4.0]])) == grid.at(np.array([[0.0, 4.0]]))
    for point in ((-1.0, 3.3), (8.0, 8.0), (2.2, 9.9), (4.0, 0.1)):
        assert grid.at_one(*point) == pytest.approx(float(grid.at(np.array([point]))[0]))
        assert grid.along_first(*point[1:])(point[0]) == pytest.approx(grid.at_one(*point), rel=1e-12)


def test_a_grid_follows_most_of_its_rows_and_not_the_odd_ones():
    points = np.random.default_rng(2).uniform(0, 4, (1000, 1))
    off = np.where(np.arange(1000) % 10 == 0, 1.5, 0.1)
    grid = fit_residuals((np.linspace(0, 4, 5),), points, off)
    assert np.log(grid.at(np.array([[2.2]])))[0] == pytest.approx(0.1, abs=2 * STEP)


def prompts_us(
    generation: int, sequences: float, tokens: float, heads: float, kv_heads: float, **changed: float
) -> float:
    constants = {name: first for name, (_, first, _) in attention.PROMPT_BOUNDS.items()} | changed
    chip = Chip(100, 1e9, 3e6, generation)
    shape = np.array([[sequences, tokens, heads, kv_heads]], float)
    return float(FAMILIES["prompts"].time_us(constants, chip, PLAIN, shape)[0])


def test_short_prompts_share_blocks_between_heads_on_hopper_alone():
    """16 queries of 8 heads that share keys fill a block of 128: 256 sequences are 256 rows, or 2,048."""
    hopper, blackwell, other = (prompts_us(kind, 256, 16, 8, 1, row=10.0, waves=0.01) for kind in (9, 10, 0))
    block = 2 * 128 * 128 * 256 / (0.6 * 1e7)
    assert hopper < 50
    assert blackwell - hopper == pytest.approx((10.0 + block) * (20.48 - 2.56), rel=0.02)
    assert other == blackwell
    single = [prompts_us(kind, 2560, 1, 8, 1) for kind in (9, 10, 0)]  # decodes share blocks on all
    assert single[0] == single[1] == single[2]


def test_keys_of_few_long_rows_are_split_on_hopper_alone():
    """One head of 4,096 tokens is 32 rows; 100 SMs take them in three parts each, 128 rows as they are."""
    hopper, other = (prompts_us(generation, 1, 4096, 1, 1, row=0.02) for generation in (9, 0))
    assert hopper < 0.6 * other
    assert prompts_us(9, 1, 512, 1, 1) == prompts_us(0, 1, 512, 1, 1)
    assert prompts_us(9, 4, 4096, 1, 1) == prompts_us(0, 4, 4096, 1, 1)


def test_each_token_is_written_by_a_block_of_its_own():
    """The same rows of blocks and as many keys: 64 sequences of 8 heads have 8 times the tokens of 8 of 64."""
    for kind in (9, 10):
        many, few = (
            prompts_us(kind, sequences, 512, heads, heads, token=0.01) for sequences, heads in ((64, 8), (8, 64))
        )
        assert many - few == pytest.approx(0.01 * 512 * 56)
    one, four = (
        prompts_us(0, 64, 512, 64, heads, token=0.02) - prompts_us(0, 64, 512, 64, heads, token=0.01)
        for heads in (1, 4)
    )
    assert four == pytest.approx(0.01 * 64 * 512)
    assert one == pytest.approx(four / 4**attention.WRITE_POWER)


@pytest.mark.parametrize("chip", [Chip(100, 1e9, 3e6, kind) for kind in (9, 10)])
def test_chunks_of_a_prompt_add_up_to_its_tiles(chip):
    def tiles(tokens: float, before: float) -> float:
        sizes = (np.array(value) for value in (1.0, tokens, before, 32.0, 8.0))
        return float(attention.Blocks.of(attention.prompt_kernel(chip), *sizes, attention.WIDTH).blocks)

    for chunks in ((2048, 2048), (256, 512, 1280), (1024, 256, 256, 256)):
        befores = np.cumsum((0, *chunks)).tolist()
        apart = sum(tiles(tokens, before) for tokens, before in zip(chunks, befores, strict=False))
        assert apart == tiles(befores[-1], 0.0)


def test_attention_of_longer_prompts_grows_with_pairs_and_decodes_with_their_cache():
    times = [prompts_us(0, 8, tokens, 32, 8) for tokens in (4096, 8192, 16384)]
    assert 3.6 < times[2] / times[1] < 4.2
    decode = {name: first for name, (_, first, _) in attention.DECODE_BOUNDS.items()}
    rows = np.array([512.0])
    short, long = (float(attention.decode_us(decode, CHIP, np.array([b]), rows, rows)[0]) for b in (1e9, 2e9))
    assert long - short == pytest.approx(1e9 / (decode["memory"] * 3e6))
    for count, queries in ((1, 1), (40, 320), (512, 512)):
        line = attention.decode_line(decode, CHIP, count, queries)
        for moved in (0.0, 1e3, 1e5, 1e7, 1e9):
            sizes = (np.array([float(value)]) for value in (moved, count, queries))
            assert line(moved) == pytest.approx(float(attention.decode_us(decode, CHIP, *sizes)[0]), rel=1e-9)


def test_experts_read_what_tokens_meet_and_move_every_row():
    first = {name: first for name, (_, first, _) in experts.BOUNDS.items()}

    def took(tokens: float, ranks: float = 1, inner: float = 1536, ups: float = 2) -> float:
        shape = np.array([[tokens, 4096, inner, 8, 128, ranks, ups, 0.0]], float)
        return float(experts.experts_us(first, CHIP, Format(2.0, cast=False), shape)[0])

    assert took(1) < 0.2 * took(16)  # 8 experts' weights, then all 128
    assert took(32) < 1.5 * took(16)
    assert took(16384, 8) < took(16384)
    moved = 2.0 * 16384 * 8 * (first["hidden"] * 4096 + first["inner"] * 1536) / 3e6
    assert took(16384, 128) > moved
    assert took(64, ups=1) < 0.75 * took(64)  # two matrices instead of three
    assert took(64, inner=1535) > 1.2 * took(64)  # whose rows begin between sectors of memory


def test_a_gpu_that_was_not_measured_takes_the_nearest_of_its_generation():
    assert nearest("h100-hbm2e", ["h100-sxm", "h200-sxm", "gb200"]) == "h100-sxm"
    assert nearest("gb200", ["b200-sxm", "gb200"]) == "gb200"
    assert nearest("gb300", ["h100-sxm", "gb200", "b200-sxm"]) in ("gb200", "b200-sxm")
    known, other = table("products", "gb200", "bf16"), table("products", "a100-80", "bf16")
    assert known is not None
    assert other is not None
    assert known.residuals is not None
    assert other.residuals is None
    assert generation(other.of) != generation("a100-80")
    assert table("products", "gb200", "fp4", "no such library") is None
    # 312 TFLOP/s of the data sheet at the share that Hopper's library gets
    shape = np.array([[8192, 8192, 8192]], float)
    rate = 2 * 8192**3 / float(other.time_us(chip_of("a100-80", "products", "bf16"), shape)[0]) / 1e6
    assert 0.7 * 312 < rate < 0.9 * 312


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_tables_are_of_their_grids_shape(name):
    for gpu in ("h100-sxm", "gb200"):
        kind = "bf16/balanced" if name == "experts" else "bf16"
        found = table(name, gpu, kind)
        assert found is not None
        assert found.residuals is not None
        assert found.residuals.steps.shape == tuple(len(axis) for axis in FAMILIES[name].axes)


EXPERTS = (
    "moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency_ms\n"
    "fp8,16,2688,1856,6,128,8,1,balanced,0.2\n"
)


def test_a_packed_file_of_measurements_is_unpacked_no_further_than_files_may_be_large(tmp_path, monkeypatch):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(EXPERTS.encode() + b"\n" * 2000))
    monkeypatch.setattr(measurements, "MAX_BYTES", 1000)
    with pytest.raises(ConfigError, match="is larger than 0 MiB unpacked"):
        read_measured(path)


def test_files_of_measurements_say_what_is_wrong_with_them(tmp_path):
    path = tmp_path / "t.csv"
    for text, message in (
        ("", "no rows"),
        ("a,latency_ms\n1,2\n", "none of the columns"),
        ("gemm_dtype,m,n,latency_ms\nfp8,1,256,1\n", "no column 'k'"),
        ("gemm_dtype,m,n,k,latency_ms\nfp8,1,256,x,1\n", "could not convert"),
        ("gemm_dtype,m,n,k,latency_ms\nfp8,1,256,1\n", "got 4 columns, expected 5"),
        ("gemm_dtype,m,n,k,latency_ms\nfp8,1,256,256,-1\n", "below 0"),
        (f"gemm_dtype,m,n,k,latency_ms\nfp8,1,256,256,{'1' * 201}\n", "field of more than 200 characters"),
        (EXPERTS.replace("distribution", "x"), "no column 'distribution'"),
        (EXPERTS.replace(",8,1,", ",0,1,"), "moe_tp_size: got a size below 1"),
        ("PAR1 and nothing more", "is no Parquet file|needs pyarrow"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_measured(path)
    path.write_text("gemm_dtype,m,n,k,latency_ms\nfp8,1,256,512,0.5\nbfloat16,2,512,256,0.25\nfp8,1,32,512,1\n")
    found = {one.type: one for one in read_measured(path)}
    assert found["fp8"].shapes.tolist() == [[1, 256, 512]]  # 32 is too narrow to show more than launch
    assert found["fp8"].times_us.tolist() == [500.0]
    assert found["bf16"].times_us.tolist() == [250.0]


@pytest.mark.parametrize(("gpu", "file", "limits"), [("h100-sxm", "h100_sxm_vllm0.24.0", (0.05, 0.18))])
def test_products_that_were_held_out_are_met(shared: Path, gpu: str, file: str, limits: tuple[float, float]):
    """Everything fitted to four fifths of the pairs of n and k, judged on the last."""
    path = shared / f"validation/serving/aic_ops_{file}_gemm.csv.gz"
    whole = next(one for one in read_measured(path) if one.type == "bf16")
    pair = np.unique(whole.shapes[:, 1:], axis=0, return_inverse=True)[1].ravel()
    out = np.random.default_rng(5).integers(0, 5, pair.max() + 1)[pair] == 0
    fitted = fit_table(gpu, Measured("products", "bf16", whole.shapes[~out], whole.times_us[~out]))
    off = np.abs(fitted.time_us(chip_of(gpu, "products", "bf16"), whole.shapes[out]) / whole.times_us[out] - 1)
    assert np.median(off) <= limits[0]
    assert np.quantile(off, 0.95) <= limits[1]

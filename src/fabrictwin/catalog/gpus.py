"""GPUs: what they are built for, and what was measured of matrix products and attention on them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

from pydantic import Field, field_validator, model_validator

from fabrictwin.base.units import Duration, Flops, Rate, Size
from fabrictwin.catalog.figures import Entry, Figure, Model, SourcedPart
from fabrictwin.catalog.quantities import Capability, Count, Ratio, Watts


class GemmTable(SourcedPart):
    """Measured matrix products of one precision: `{"4096 x 4096 x 8192": "690 TFLOP/s"}` for m × n × k.

    A table may instead be `like` another (`h100-sxm/fp16`), its throughputs times `factor`.
    """

    points: dict[str, Flops] = Field(default_factory=dict)
    like: str = ""
    factor: Ratio = Fraction(1)

    @model_validator(mode="after")
    def _measured_or_like(self) -> GemmTable:
        if not self.source:
            raise ValueError("a table without a source, and the entry names none either")
        if bool(self.points) == bool(self.like):
            raise ValueError("expected either measured points or another table to be like")
        return self

    @field_validator("points")
    @classmethod
    def _shapes(cls, points: dict[str, float]) -> dict[str, float]:
        for shape in points:
            if not re.fullmatch(r"\d+ x \d+ x \d+", shape):
                raise ValueError(f"got {shape!r}, expected a shape m x n x k, such as '4096 x 4096 x 8192'")
        return points

    def rows(self) -> tuple[tuple[int, int, int, float], ...]:
        """The points as (m, n, k, FLOP/s), smallest product first."""
        rows = []
        for shape, flops in self.points.items():
            m, n, k = (int(side) for side in shape.split(" x "))
            rows.append((m, n, k, flops))
        return tuple(sorted(rows, key=lambda row: (row[0] * row[1] * row[2], row)))


class Attention(Model):
    """Measured attention throughput and the shape that it was measured with."""

    throughput: Figure[Flops]
    head_size: Figure[Count]
    sequence: Figure[Count]


class Misaligned(Model):
    """What products in 16 bits keep of their rates where a row of a matrix is no multiple of 16 bytes.

    Of sides that are even, and of odd ones: of the products' throughput, and of the memory's rate.
    """

    even_products: Figure[Ratio]
    even_memory: Figure[Ratio]
    odd_products: Figure[Ratio]
    odd_memory: Figure[Ratio]


class Gpu(Entry):
    """A GPU. `peak_flops` is dense, by precision; `gemm` and `attention` are what was measured of it.

    `product_names` is a pattern of what nvidia-smi and CUDA call it (of several GPUs', the longest match counts),
    `pci_devices` what they call it by the identifier of its PCI device.
    """

    product_names: str = ""
    pci_devices: dict[str, str] = Field(default_factory=dict)
    power: Figure[Watts]
    sm_count: Figure[Count]
    peak_flops: dict[str, Figure[Flops]]
    memory: Figure[Size]
    memory_bandwidth: Figure[Rate]
    memory_bandwidth_measured: Figure[Rate]
    compute_capability: Figure[Capability]
    nvlink: str = ""
    nvlink_links: Figure[Count] | None = None
    pcie: str
    pcie_lanes: Figure[Count]
    kernel_launch: Figure[Duration]
    gemm: dict[str, GemmTable]
    misaligned: Misaligned | None = None  # None: unmeasured
    attention: dict[Literal["flash", "cudnn", "materialised"], Attention]
    exponentials: Figure[Flops] | None = None  # of the special function units, e^x counted as one
    # times of a product over that of the tables, where a step does not run what was measured: in fp8 with full
    # sums (the tables' are cut short) or a scale for every block or row (the tables' have one), in fp4 as
    # Transformer Engine calls it (the tables' are of cuBLASLt alone)
    fp8_full_sums: Figure[Ratio] | None = None
    fp8_blocks: Figure[Ratio] | None = None
    fp8_rows: Figure[Ratio] | None = None
    fp4_in_engine: Figure[Ratio] | None = None

    @property
    def memory_efficiency(self) -> float:
        """The share of the memory's peak rate that a streaming kernel was measured to get."""
        return self.memory_bandwidth_measured.value / self.memory_bandwidth.value

    @property
    def wide_type(self) -> Literal["bf16", "fp16"]:
        """The type of 16 bits that products are made in: fp16 where the tensor cores have no bf16 (V100)."""
        return "bf16" if "bf16" in self.peak_flops else "fp16"

    @property
    def wide_peak(self) -> float:
        """Dense peak of products in 16 bits, FLOP/s."""
        return float(self.peak_flops[self.wide_type].value)

    def computed(self) -> dict[str, str]:
        return {"memory efficiency": f"{self.memory_efficiency:.3f}"}


class MeasuredPower(Model):
    """Mean power of a whole server while it made so many tokens a second."""

    power: Figure[Watts]
    rate: Figure[Count]

    @property
    def tokens_per_joule(self) -> float:
        return self.rate.value / self.power.value


class ServerPower(Entry):
    """A server of one GPU generation; `rack_gpus` is how many GPUs stand in a rack."""

    gpus: Figure[Count]
    most: Figure[Watts]
    rack_gpus: Figure[Count]
    measured: dict[str, MeasuredPower] = Field(default_factory=dict)

    @property
    def rack_watts(self) -> float:
        """Power of a rack at most."""
        return self.most.value * self.rack_gpus.value / self.gpus.value

    def computed(self) -> dict[str, str]:
        found = {"a GPU, at most": f"{self.most.value / self.gpus.value:.0f} W"}
        found["a rack, at most"] = f"{self.rack_watts / 1e3:.1f} kW"
        return found | {
            f"{name}, a joule": f"{one.tokens_per_joule:.3g} tokens" for name, one in self.measured.items()
        }

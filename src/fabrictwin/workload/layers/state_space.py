"""A Mamba-2 layer: norm, input projection, convolution, state-space scan, gated norm, output projection, residual.

The scan (Dao and Gu 2024, arXiv 2405.21060, section 6) works on chunks of tokens: within a chunk, products of the
groups' vectors make a matrix of scores, masked by decays, that weighs the chunk's inputs; each chunk leaves a
state in 4 bytes, states are passed on from chunk to chunk, and what a chunk read of the state before it is added.
Each is a kernel (mamba-ssm's, in Triton), which takes its products and its bytes as they would alone, over a
calibrated share of it. Forward by themselves those kernels are near both; backward's are what makes it small.

As the memory-efficient path of mamba-ssm does, which Megatron-LM takes, only what the input projection gave is
kept: backward runs convolution and scan again. Its products are twice forward's, its states too.

Tensor parallel divides heads, groups and channels. Left out: decays' running sums within a chunk (a few bytes a
head), context parallel, which is refused.
"""

from __future__ import annotations

from fabrictwin.workload.layers.pass_script import Part, Script
from fabrictwin.workload.layers.roofline import FLOAT_BYTES, Cost
from fabrictwin.workload.layers.transformer import Sublayer


class MambaBlock(Sublayer):
    """Forward and backward of one Mamba-2 layer."""

    def convolution(self) -> tuple[Cost, Cost]:
        """Read and written once; backward reads input and gradient and writes one."""
        assert self.model.mamba is not None
        elements = self.shape.tokens * self.model.mamba.channels // self.shape.sharing.tp
        e = self.roof.element_bytes
        return self.roof.stream(2 * e * elements), self.roof.stream(3 * e * elements)

    def scan(self) -> tuple[Cost, Cost]:
        """(forward, backward without what it runs again)."""
        found, roof, tokens = self.model.mamba, self.roof, self.shape.tokens
        assert found is not None
        heads, groups = found.heads // self.shape.sharing.tp, found.groups // self.shape.sharing.tp
        chunks, size = -(-tokens // found.chunk), found.chunk
        scores = roof.gemm(size, size, found.state, batch=chunks * groups)
        within = roof.gemm(size, found.head_size, size, batch=chunks * heads)
        states = roof.gemm(found.head_size, found.state, size, batch=chunks * heads)
        read = roof.gemm(size, found.head_size, found.state, batch=chunks * heads)
        numbers = chunks * heads * found.head_size * found.state
        # written by chunks, passed on (read and written), read by chunks
        moved = roof.stream(FLOAT_BYTES * numbers) * 2 + roof.stream(2 * FLOAT_BYTES * numbers)
        forward = scores + within + states + read + moved
        gate = roof.stream(roof.element_bytes * 2 * tokens * found.inner // self.shape.sharing.tp)
        share = 1 / self.shape.kernels.scan_share
        return forward.scaled(share), (forward * 2 + gate).scaled(share)

    def gated_norm(self) -> tuple[Cost, Cost]:
        """(forward, backward) norm of the scan's result times the gate: 2 read, 1 written; 3 read, 2 written."""
        assert self.model.mamba is not None
        once = self.roof.element_bytes * self.shape.tokens * self.model.mamba.inner // self.shape.sharing.tp
        return self.roof.stream(3 * once), self.roof.stream(5 * once)

    def _issued(self, script: Script) -> Script:
        return script.captured() if "mamba" in self.shape.kernels.captured else script

    def forward(self, part: Part = "forward") -> Script:
        assert self.model.mamba is not None
        script, (enter, out) = Script(), self.model.mamba_linears()
        script.compute(self.norm()[0] + self.roof.cast_alone(self.shape.local * self.model.hidden), part)
        self.enter(script, enter, self.model.hidden, part)
        script.compute(self.convolution()[0] + self.scan()[0] + self.gated_norm()[0], part)
        script.compute(self.roof.cast(self.shape.tokens * self.model.mamba.inner // self.shape.sharing.tp), part)
        self.leave(script, out, part)
        script.compute(self.residual()[0], part)
        return self._issued(script)

    def backward(self) -> Script:
        script, (enter, out) = Script(), self.model.mamba_linears()
        script.compute(self.residual()[1], "backward")
        self.leave_backward(script, out)
        script.compute(self.convolution()[0] + self.scan()[0], "recompute")
        script.compute(self.gated_norm()[1] + self.scan()[1] + self.convolution()[1], "backward")
        script.compute(self.roof.cast(self.shape.tokens * enter.out // self.shape.sharing.tp), "backward")
        self.enter_backward(script, enter, self.model.hidden)
        if "norms" in self.shape.kernels.recompute_modules:
            script.compute(self.norm()[0], "recompute")
        script.compute(self.norm()[1], "backward")
        return self._issued(script)

"""First steps from Python, cell by cell: a script, and a notebook for editors that know `# %%`."""

# %% A spec from a file, and a run of it
from pathlib import Path

import fabrictwin as ft

spec = ft.load(Path(__file__).parents[1] / "laptop.yaml")
result = ft.run(spec)
print(result)

# %% Where the step goes, and which links carry it
print(result.breakdown)
print(result.links)

# %% What if there were twice the hosts, or half the link rate?
for hosts in (2, 4, 8):
    there = ft.run(spec.with_(cluster__hosts__count=hosts), fidelity="analytic")
    print(f"{hosts} hosts: {there.step_time:.3f} s a step")

# %% The fastest layout that fits
plan = ft.plan(spec, top=3, fidelity="analytic")
print(plan.layouts)
best = ft.run(plan.best)
print(f"{result.step_time / best.step_time:.2f} times as fast")

# %% An all-reduce over all GPUs, as nccl-tests measures it
test = ft.nccl_tests("all_reduce_perf", spec, minbytes="1M", maxbytes="256M", stepfactor=4)
print(test.rows)

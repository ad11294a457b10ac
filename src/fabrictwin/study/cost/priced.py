"""The cost of a spec's cluster and, where it has a job, of what that job trains."""

from __future__ import annotations

from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.units import PS_PER_S
from fabrictwin.catalog.price_book import PriceBook
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.runs.execute import predict
from fabrictwin.serving.predict import predict as serve
from fabrictwin.study.cost.bill_of_materials import bill_of_materials
from fabrictwin.study.cost.cluster_cost import Cost, cost, without_hosts


def tokens_per_s(spec: Spec, stage: Stage) -> float | None:
    """Tokens that the spec's job trains a second, as its fidelity predicts it, or that its server puts out; None
    without either.
    """
    if not spec.workload:
        return None
    if "serving" in spec.workload:
        return float(serve(spec).fields["output_throughput"])
    result = predict(spec, stage)
    if result.job.work is None or not result.trace.end_ps:
        return None
    return result.job.work.tokens * PS_PER_S / result.trace.end_ps


def priced(spec: Spec, book: PriceBook, *, years: float = 4.0, stage: Stage = silent) -> Cost:
    """The bill of the whole cluster, whether the job uses all of it or not. Raises ConfigError."""
    stage("building the cluster")
    bill = bill_of_materials(build(spec.cluster, spec=spec), book)
    return without_hosts(cost(bill, book, years=years, tokens_per_s=tokens_per_s(spec, stage)))

"""What a served token costs: money of the GPUs that serve, with their share of the cluster, and energy."""

from __future__ import annotations

from dataclasses import replace

from fabrictwin.base.records import record
from fabrictwin.catalog.price_book import PriceBook
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.study.cost.bill_of_materials import Bill, bill_of_materials
from fabrictwin.study.cost.cluster_cost import cost


@record
class TokenCost:
    """Costs of a million output tokens, and energy of one.

    Attributes:
        currency: Of the price book.
        per_million: Money for a million output tokens.
        joules: Energy of an output token, the site's overhead included.
        gpu_hour: Money for a GPU and an hour.
    """

    currency: str
    per_million: float
    joules: float
    gpu_hour: float


@record
class Prices:
    """A cluster's bill under a price book, over so many years."""

    bill: Bill
    book: PriceBook
    years: float = 4.0

    @staticmethod
    def of(spec: Spec, book: PriceBook, years: float = 4.0) -> Prices:
        """Return the prices of a spec's cluster."""
        return Prices(bill_of_materials(build(spec.cluster, spec=spec), book), book, years)

    def token(self, *, gpus: int, tokens_per_s: float) -> TokenCost:
        """Return what an output token costs where `gpus` of the cluster make so many a second."""
        whole = tokens_per_s * self.bill.gpus / gpus
        found = cost(self.bill, self.book, years=self.years, tokens_per_s=whole)
        # an interruption of one job on all GPUs stops its training; a server loses one replica, which is left out
        found = replace(found, staff=replace(found.staff, down=0.0))
        assert found.per_million_tokens is not None
        assert found.joules_per_token is not None
        return TokenCost(self.bill.currency, found.per_million_tokens, found.joules_per_token, found.gpu_hour)

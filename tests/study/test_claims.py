"""Claims: figures come from experiments, judgements follow from figures, the page is what the command writes."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.cli import main
from fabrictwin.study.claims import job_claims as jobs
from fabrictwin.study.claims import link_claims as links
from fabrictwin.study.claims import loss_claims as loss
from fabrictwin.study.claims import serving_claims as serving
from fabrictwin.study.claims.claim import Judgement, within
from fabrictwin.study.claims.claim_book import CLAIMS, as_data, as_markdown, as_text, judge_all

QUICK = ("generations", "ecn", "switch", "ipoib", "a100")
PAGE = Path(__file__).parents[2] / "docs" / "claims.md"


def test_quick_claims_have_figures_and_a_judgement():
    found = judge_all(QUICK)
    assert [claim.key for claim in found] == [name for name in CLAIMS if name in QUICK]
    for claim in found:
        assert claim.figures
        assert claim.statement.endswith(".")
        assert claim.why
        assert isinstance(claim.judgement, Judgement)
    text = as_text(found)
    for claim in found:
        assert all(value in text for _, value in claim.figures)
    json.dumps(as_data(found))


def test_a_claim_is_judged_by_its_figures_not_by_its_name(monkeypatch):
    """With another line code in the catalog the claim about rates no longer holds."""
    from fabrictwin.study.claims import link_claims as links

    assert links.generations().judgement == Judgement.CONDITIONS  # latencies are not as said
    monkeypatch.setattr(links.catalog, "infiniband_rate", lambda speed, width: 10**9)
    assert links.generations().judgement == Judgement.OFF


@pytest.mark.second
def test_a_late_gpu_costs_its_lateness():
    claim = next(iter(judge_all(("late",))))
    assert dict(claim.figures)["the step takes longer by"] == "20 us"
    assert claim.judgement == Judgement.HOLDS


def test_within_is_a_share():
    assert within(1.04, 1.0, 0.05)
    assert not within(1.06, 1.0, 0.05)


def test_an_unknown_name_is_one_clear_line(capsys):
    with pytest.raises(ConfigError, match="did you mean 'latency'"):
        judge_all(("latencies",))
    assert main(["claims", "latencies"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["claims", "ecn", "--write", "x.md"]) == 2


def test_every_claim_stands_on_the_page():
    page = PAGE.read_text()
    for name in CLAIMS:
        assert f"## {name}\n" in page


@pytest.mark.second
def test_the_page_is_what_the_command_writes():
    assert PAGE.read_text() == as_markdown(judge_all())


def test_no_figure_in_the_words_of_a_judgement_was_typed():
    """Numbers in `why` stand in braces; what is left are names: of standards, products, generations, formats."""
    names = r"802\.1Q\w+|RFC \d+|RoCE v2|[AHB]\d00|ConnectX-\d|(?:fp|int|bf)\d+|MTU|NCCL"
    for module in (jobs, links, loss, serving):
        for call in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if not isinstance(call, ast.keyword) or call.arg != "why":
                continue
            inside = {
                id(part)
                for one in ast.walk(call.value)
                if isinstance(one, ast.FormattedValue)
                for part in ast.walk(one)
            }
            words = [
                part.value
                for part in ast.walk(call.value)
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in inside
            ]
            assert not re.search(r"\d", re.sub(names, "", " ".join(words))), words

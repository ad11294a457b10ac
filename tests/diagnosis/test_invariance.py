"""The same verdict however a log was passed on: mixed, prefixed, coloured, renamed, cut."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.cluster_prints import PREFIXES, coloured, cut, interleaved, nccl_log, prefixed, renamed

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text

LOGS = {
    "healthy": {},
    "gdr-off": {"fault": "no-gpudirect-module"},
    "socket-fallback": {"fault": "no-rdma-devices", "at": "*"},
    "p2p-off": {"setting": "NCCL_P2P_DISABLE=1"},
    "locked-memory": {"fault": "locked-memory"},
}


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def ids(found: Diagnosis) -> list[tuple[str, Severity]]:
    return [(one.id, one.severity) for one in found.findings if one.severity >= Severity.WARNING]


@settings(max_examples=60, phases=(Phase.explicit, Phase.generate))
@given(
    name=st.sampled_from(sorted(LOGS)),
    seed=st.integers(0, 2**32),
    launcher=st.sampled_from(("", *PREFIXES)),
    colours=st.booleans(),
    names=st.booleans(),
    returns=st.booleans(),
    shortened=st.booleans(),
)
@pytest.mark.second
def test_the_verdict_stays_however_a_log_was_passed_on(name, seed, launcher, colours, names, returns, shortened):
    text = nccl_log(**LOGS[name])
    if shortened and name != "locked-memory":  # its one warning is the last line
        text = cut(text)
    before = answer(text)
    text = interleaved(text, seed)
    text = renamed(text) if names else text
    text = coloured(text) if colours else text
    text = prefixed(text, launcher) if launcher else text
    text = text.replace("\n", "\r\n") if returns else text
    after = answer(text)
    assert ids(after) == ids(before)
    assert after.verdict == before.verdict
    assert len(after.evidence.of("bench.row")) == len(before.evidence.of("bench.row"))


@pytest.mark.parametrize("name", ["healthy", "gdr-off", "socket-fallback", "p2p-off"])
def test_the_verdict_stays_when_a_tenth_is_cut_off(name):
    text = nccl_log(**LOGS[name])
    assert ids(answer(cut(text))) == ids(answer(text))


@pytest.mark.parametrize("launcher", ["mpirun", "ray", "kubernetes", "torchrun", "compose", "cloudwatch", "dated"])
def test_a_warning_without_its_host_is_known_behind_any_prefix(launcher):
    text = "[0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
    assert ids(answer(prefixed(text.strip(), launcher))) == ids(answer(text)) != []


def test_a_row_that_another_rank_broke_is_joined():
    half = "   268435456      67108864     float     sum      -1"
    rest = "   1000.0  268.44  503.32      0    1001.0  268.17  502.81      0"
    head = "# Collective test starting: all_reduce_perf\n#       size         count      type   redop    root     time\n"
    log = f"{head}{half}a:1:2 [0] NCCL INFO Connected all rings\n{rest}\n"
    rows = read_text(log).of("bench.row")
    assert [row.parts[2:5] for row in rows] == [(268435456, 1000.0, 503.32)]

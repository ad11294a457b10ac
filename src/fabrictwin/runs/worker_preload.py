"""A small run on import, by the process that workers are forked from: each begins with its kernels loaded."""

from __future__ import annotations

import gc
import signal
from contextlib import suppress


def _run_once() -> None:
    from fabrictwin.base.errors import FabrictwinError
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.report.summary import summary
    from fabrictwin.runs.examples import examples_folder
    from fabrictwin.runs.execute import predict

    with suppress(FabrictwinError, OSError):  # workers would say it themselves
        summary(predict(load_spec(examples_folder() / "laptop.yaml").with_({"run.fidelity": "analytic"})))


signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends this without a word: who asked says it
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
_run_once()
gc.freeze()  # what all workers share stays shared

"""fabrictwin: a digital twin of the network that turns many GPUs into one computer.

    import fabrictwin as ft

    spec = ft.load("examples/laptop.yaml")
    result = ft.run(spec)
    result.step_time, result.breakdown, result.links

Every name here is imported when it is first asked for, so that `import fabrictwin` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fabrictwin.base.version import __version__

if TYPE_CHECKING:
    from fabrictwin.api.campaign import CampaignStudy, campaign
    from fabrictwin.api.compare import Comparison, compare
    from fabrictwin.api.configure import ConfiguredFiles, LintReport, configure, lint
    from fabrictwin.api.diff import Difference, diff
    from fabrictwin.api.doctor import doctor
    from fabrictwin.api.jitter import JitterStudy, jitter
    from fabrictwin.api.nccl_tests import NcclTest, nccl_tests
    from fabrictwin.api.plan import Plan, plan
    from fabrictwin.api.run import Result, run
    from fabrictwin.api.servers.serve import ServerRun, serve
    from fabrictwin.api.servers.server_comparison import ServerComparison
    from fabrictwin.api.servers.server_plan import ServerPlan
    from fabrictwin.api.specs import import_config, load
    from fabrictwin.api.sweep import Sweep, sweep
    from fabrictwin.api.tables import Table
    from fabrictwin.api.traces import capture_program, export_trace, import_trace
    from fabrictwin.api.ui import ui
    from fabrictwin.base.errors import ConfigError, FabrictwinError, SimulatedError
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.diagnosis.diagnose import Diagnosis
    from fabrictwin.interchange.frameworks.read_config import ImportedConfig
    from fabrictwin.twin.twin import Twin

_HOME = {
    "load": "api.specs",
    "run": "api.run",
    "serve": "api.servers.serve",
    "plan": "api.plan",
    "calibrate": "calibration.calibrate",
    "campaign": "api.campaign",
    "compare": "api.compare",
    "diff": "api.diff",
    "configure": "api.configure",
    "lint": "api.configure",
    "doctor": "api.doctor",
    "export_trace": "api.traces",
    "import_config": "api.specs",
    "capture_program": "api.traces",
    "import_trace": "api.traces",
    "jitter": "api.jitter",
    "nccl_tests": "api.nccl_tests",
    "sweep": "api.sweep",
    "ui": "api.ui",
    "Spec": "cluster.spec.spec",
    "Result": "api.run",
    "ServerComparison": "api.servers.server_comparison",
    "ServerPlan": "api.servers.server_plan",
    "ServerRun": "api.servers.serve",
    "Plan": "api.plan",
    "CampaignStudy": "api.campaign",
    "Comparison": "api.compare",
    "Difference": "api.diff",
    "ConfiguredFiles": "api.configure",
    "LintReport": "api.configure",
    "Diagnosis": "diagnosis.diagnose",
    "ImportedConfig": "interchange.frameworks.read_config",
    "JitterStudy": "api.jitter",
    "NcclTest": "api.nccl_tests",
    "Sweep": "api.sweep",
    "Table": "api.tables",
    "Twin": "twin.twin",
    "ConfigError": "base.errors",
    "FabrictwinError": "base.errors",
    "SimulatedError": "base.errors",
}

__all__ = [
    "CampaignStudy",
    "Comparison",
    "ConfigError",
    "ConfiguredFiles",
    "Diagnosis",
    "Difference",
    "FabrictwinError",
    "ImportedConfig",
    "JitterStudy",
    "LintReport",
    "NcclTest",
    "Plan",
    "Result",
    "ServerComparison",
    "ServerPlan",
    "ServerRun",
    "SimulatedError",
    "Spec",
    "Sweep",
    "Table",
    "Twin",
    "__version__",
    "campaign",
    "capture_program",
    "compare",
    "configure",
    "diff",
    "doctor",
    "export_trace",
    "import_config",
    "import_trace",
    "jitter",
    "lint",
    "load",
    "nccl_tests",
    "plan",
    "run",
    "serve",
    "sweep",
    "ui",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

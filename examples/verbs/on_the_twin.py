"""Run a program of pyverbs on a cluster's twin: CLUSTER PROGRAM."""

import runpy
import sys

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import load_cluster
from fabrictwin.twin import Twin
from fabrictwin.verbs import install

cluster, program = sys.argv[1:3]
spec = load_cluster(cluster)
world = install(Twin(build(spec.cluster, spec=spec)))
runpy.run_path(program, run_name="__main__")
print(f"simulated time: {world.now_ps / 1e6:.3f} us")

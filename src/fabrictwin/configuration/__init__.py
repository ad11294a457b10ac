"""What a cluster's switches and hosts are configured to: made from a spec, written, read back, checked, rehearsed.

One model (`model/`) stands between all formats. `policy/` makes it from a cluster, `writers/` and `readers/` put
it into the formats of SONiC, NVUE, OpenSM, Linux hosts, Slurm and Kubernetes and take it out again, `lint/` holds
rules on it, `headroom/` has the formulas of buffers, `network_qos` turns it into what the packet engine plays.
"""

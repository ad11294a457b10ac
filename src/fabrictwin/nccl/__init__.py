"""NCCL on the twin: topology, channels, algorithms and protocols, tuner, transports, log lines."""

"""The packet simulation: every packet, credit, pause frame, mark and retransmission."""

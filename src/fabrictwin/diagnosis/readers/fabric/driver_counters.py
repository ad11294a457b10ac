"""Counters of RDMA devices and their interfaces, in the names that mlx5 has for the same thing.

From the drivers' own tables: mlx5 (the kernel's documentation of its counters), bnxt_re (hw_counters.c) and
bnxt_en (bnxt_ethtool.c), irdma (verbs.c), ionic (names that its firmware gives, `rdma_stats_hdrs`). What only one
driver counts keeps its name. bnxt_re's `recoverable_errors` holds broadcast packets and is no count of errors.
"""

from __future__ import annotations

import re

# pauses by priority: bnxt_en, mlx4_en, i40e and ice (xon ends a pause)
_PAUSES = re.compile(
    r"(?:port\.)?([rt]x)_(?:pfc_ena_frames_pri([0-7])|pause_prio_([0-7])|priority_([0-7])_xoff)(?:\.nic)?$"
)
_MLX5 = {
    "local_ack_timeout_err": ("to_retransmits", "tx_rdma_ack_timeout", "tx_rdma_ccl_cts_ack_timeout"),
    "packet_seq_err": ("seq_err_naks_rcvd", "req_rx_pkt_seq_err"),
    "implied_nak_seq_err": ("req_rx_impl_nak_seq_err",),
    "req_transport_retries_exceeded": ("max_retry_exceeded", "req_tx_retry_excd_err"),
    "out_of_sequence": ("oos_drop_count", "resp_rx_outouf_seq", "resp_rx_outof_seq", "resp_tx_pkt_seq_err"),
    "rnr_nak_retry_err": ("rnr_naks_rcvd", "req_rx_rnr_retry_err"),
    "out_of_buffer": ("resp_rx_outof_buf",),
    "req_remote_access_errors": ("remote_access_err", "req_rx_rmt_acc_err"),
    "resp_remote_access_errors": (
        "resp_tx_rmt_acc_err",
        "res_rx_invalid_rkey",
        "res_rx_no_perm",
        "res_rx_range_err",
    ),
    "req_remote_invalid_request": ("remote_invalid_req_err", "req_rx_rmt_req_err"),
    "np_cnp_sent": ("tx_cnp_pkts", "np_cnp_pkts", "cnpSent", "tx_rdma_cnp_pkts"),
    "rp_cnp_handled": ("rx_cnp_pkts", "cnpHandled", "rx_rdma_cnp_pkts"),
    "rp_cnp_ignored": ("cnpIgnored",),
    "np_ecn_marked_roce_packets": ("rx_ecn_marked_pkts", "RxECNMrkd", "rx_rdma_ecn_pkts"),
    "link_down_events_phy": ("link_down_events",),
    **{f"rx_prio{one}_discards": (f"rx_discard_packets_cos{one}",) for one in range(8)},
}
_ONE_NAME = {name: known for known, names in _MLX5.items() for name in names}


def driver_counter(name: str) -> str:
    """The one name of a counter of a driver."""
    name = _PAUSES.sub(lambda way: f"{way[1]}_priority{way[2] or way[3] or way[4]}_pause", name)
    return _ONE_NAME.get(name, name)

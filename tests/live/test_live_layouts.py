"""Layouts of the kernel's records, held against the kernel's own headers by a C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fabrictwin.live import wire
from fabrictwin.live.native_libraries import COMPILERS
from fabrictwin.live.rdma_cm import cm_abi

COMPILER = next((name for name in COMPILERS if shutil.which(name)), None)
HEADERS = Path("/usr/include/rdma/rdma_user_rxe.h")

# an expression of C, and what it must be
EXPECTED = {
    "sizeof(struct ib_uverbs_query_device_resp)": wire.QUERY_DEVICE_RESPONSE.size,
    "sizeof(struct ib_uverbs_ex_query_device_resp)": wire.QUERY_DEVICE_RESPONSE.size
    + wire.EXTENDED_QUERY_DEVICE_TAIL.size,
    "sizeof(struct ib_uverbs_query_port_resp)": wire.QUERY_PORT_RESPONSE.size,
    "sizeof(struct ib_uverbs_reg_mr)": wire.REG_MR.size,
    "sizeof(struct ib_uverbs_rereg_mr)": wire.REREG_MR.size,
    "sizeof(struct ib_uverbs_ah_attr)": wire.AH_ATTRIBUTES.size,
    "sizeof(struct ib_uverbs_create_qp) - 8": wire.CREATE_QP.size,
    "sizeof(struct ib_uverbs_qp_dest)": wire.QP_DESTINATION.size,
    "sizeof(struct ib_uverbs_modify_qp)": 2 * wire.QP_DESTINATION.size + wire.MODIFY_QP.size,
    "sizeof(struct ib_uverbs_query_qp_resp)": 2 * wire.QP_DESTINATION.size + wire.QUERY_QP_TAIL.size,
    "sizeof(struct ib_uverbs_create_srq) - 8": wire.CREATE_SRQ.size,
    "sizeof(struct mminfo)": wire.MEMORY_INFO.size,
    "sizeof(struct ib_uverbs_async_event_desc)": wire.ASYNC_EVENT.size,
    "sizeof(struct ib_uverbs_wc)": wire.COMPLETION.size,
    "offsetof(struct ib_uverbs_wc, pkey_index)": 40,
    "offsetof(struct rxe_send_wr, wr)": wire.SEND_UNION,
    "offsetof(struct rxe_send_wr, wr.ud.ah_num) - offsetof(struct rxe_send_wr, wr)": wire.SEND_DATAGRAM.size - 4,
    "offsetof(struct rxe_send_wr, wr.mw.access) - offsetof(struct rxe_send_wr, wr)": wire.SEND_WINDOW.size - 4,
    "offsetof(struct rxe_send_wqe, dma)": wire.SEND_DMA,
    "sizeof(struct rxe_send_wqe)": wire.SEND_BYTES,
    "sizeof(struct rxe_recv_wqe)": wire.RECEIVE_BYTES,
    "sizeof(struct rxe_sge)": wire.SEGMENT.size,
    "offsetof(struct rxe_queue_buf, producer_index)": wire.RING_PRODUCER,
    "sizeof(struct rxe_queue_buf)": wire.RING_HEADER_BYTES,
    "IB_USER_VERBS_ABI_VERSION": wire.VERBS_ABI,
    "IB_USER_VERBS_CMD_DESTROY_SRQ": wire.Command.DESTROY_SRQ,
    "IB_USER_VERBS_CMD_POST_SEND": wire.Command.POST_SEND,
    "sizeof(struct rdma_ucm_conn_param)": cm_abi.CONNECTION.size,
    "sizeof(struct rdma_ucm_ud_param)": cm_abi.DATAGRAM.size,
    "sizeof(struct rdma_ucm_event_resp)": cm_abi.EVENT_HEAD.size + cm_abi.EVENT_PARAMETER_BYTES + 12,
    "sizeof(struct ib_user_path_rec)": cm_abi.PATH_RECORD.size,
    "sizeof(struct rdma_ucm_query_route_resp)": 8 + 2 * 64 + 2 * 28 + cm_abi.ROUTE_TAIL.size,
    "sizeof(struct ib_uverbs_qp_attr)": cm_abi.QP_ATTRIBUTES.size,
    "RDMA_USER_CM_CMD_JOIN_MCAST": cm_abi.Command.JOIN_MCAST,
    "RDMA_USER_CM_ABI_VERSION": wire.CM_ABI,
    "sizeof(struct live_request)": wire.REQUEST.size,
    "sizeof(struct live_reply)": wire.REPLY.size,
    "sizeof(struct live_control)": wire.CONTROL_BYTES,
    "LIVE_HOSTS": wire.Kind.HOSTS,
    "LIVE_PROTOCOL": wire.PROTOCOL,
    "LIVE_PAYLOAD": wire.PAYLOAD_BYTES,
}


@pytest.mark.skipif(
    COMPILER is None or not HEADERS.is_file(), reason="needs a C compiler and the kernel's headers"
)
def test_layouts_are_the_kernels(tmp_path: Path) -> None:
    protocol = Path(wire.__file__).parent / "preload/protocol.h"
    program = tmp_path / "layouts.c"
    rows = "".join(f'printf("%ld\\n", (long)({expression}));' for expression in EXPECTED)
    program.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <rdma/rdma_user_rxe.h>\n"
        "#include <rdma/ib_user_verbs.h>\n"
        f'#include <rdma/rdma_user_cm.h>\n#include "{protocol}"\nint main(void) {{ {rows} return 0; }}\n'
    )
    assert COMPILER is not None
    subprocess.run([COMPILER, "-o", str(tmp_path / "layouts"), str(program)], check=True)
    printed = subprocess.run([tmp_path / "layouts"], capture_output=True, text=True, check=True).stdout.split()
    found = dict(zip(EXPECTED, map(int, printed), strict=True))
    assert found == {expression: int(value) for expression, value in EXPECTED.items()}

"""A message there and back between two hosts, as a program of pyverbs writes it.

On the twin:      python examples/verbs/on_the_twin.py examples/laptop.yaml examples/verbs/pingpong.py
On two adapters:  the same functions, with queue pair numbers and addresses exchanged over a socket.
"""

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR


class Side:
    def __init__(self, device, size=4096):
        self.ctx = Context(name=device)
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 16)
        self.mr = MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        cap = QPCap(max_send_wr=8, max_recv_wr=8)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        self.qp = QP(self.pd, init, QPAttr())
        self.lid = self.ctx.query_port(1).lid
        self.gid = self.ctx.query_gid(1, 0)

    def connect(self, other):
        attr = QPAttr(path_mtu=e.IBV_MTU_4096)
        attr.dest_qp_num = other.qp.qp_num
        attr.ah_attr = AHAttr(dlid=other.lid, is_global=1, gr=GlobalRoute(dgid=other.gid, sgid_index=0))
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        self.qp.to_rts(attr)

    def receive(self):
        self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.mr.buf, self.mr.length, self.mr.lkey)]))

    def send(self, text):
        self.mr.write(text, len(text))
        self.qp.post_send(SendWR(num_sge=1, sg=[SGE(self.mr.buf, len(text), self.mr.lkey)]))

    def wait(self):
        count, completions = self.cq.poll()
        while not count:
            count, completions = self.cq.poll()
        assert completions[0].status == e.IBV_WC_SUCCESS
        return completions[0]


ping, pong = Side("host-0/mlx5_0"), Side("host-3/mlx5_0")
ping.connect(pong)
pong.connect(ping)
for side in (ping, pong):
    side.receive()
ping.send("there")
arrived = pong.wait()
print("pong got", pong.mr.read(arrived.byte_len, 0).decode())
pong.send("and back")
ping.wait()  # its own send has completed
back = ping.wait()
print("ping got", ping.mr.read(back.byte_len, 0).decode())

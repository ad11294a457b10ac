"""Reports to who subscribed, repeated until they are confirmed (IBTA volume 1, chapters 13 and 15)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fabrictwin.base.units import PS_PER_S
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.manager.administration.matching import Refusal, subscribed
from fabrictwin.subnet.manager.database import SubnetDatabase
from fabrictwin.subnet.wire import notice
from fabrictwin.subnet.wire.header import Method, SaMad, SaStatus
from fabrictwin.subnet.wire.sa import RecordId

TIMEOUT_PS = PS_PER_S
RETRIES = 3


@dataclass
class Subscription:
    lid: int
    qpn: int
    info: notice.InformInfo


@dataclass
class Report:
    """A report that waits to be confirmed."""

    frame: Frame
    subscription: Subscription
    due_ps: int
    tries: int = 0


class Reports:
    """Who wants to hear of what, and what is on its way to them. No I/O: frames in, frames out."""

    def __init__(self, database: SubnetDatabase) -> None:
        self.database = database
        self.subscriptions: list[Subscription] = []
        self.pending: dict[int, Report] = {}  # by transaction
        self._tid = 0

    def subscribe(self, mad: SaMad, frame: Frame) -> notice.InformInfo:
        """Begin or end a subscription. Raises Refusal."""
        info = notice.InformInfo.decode(mad.data)
        mine = [
            s
            for s in self.subscriptions
            if s.lid == frame.slid and replace(s.info, subscribe=info.subscribe) == info
        ]
        if info.subscribe == 1:
            if not mine:
                self.subscriptions.append(Subscription(frame.slid, info.qpn or frame.sqp, info))
        else:
            if not mine:
                raise Refusal(SaStatus.REQUEST_INVALID)
            self.subscriptions = [s for s in self.subscriptions if s not in mine]
        return info

    def report_gid(self, trap: int, gid: int) -> None:
        """Report 64 to 67: a port or a group came or went."""
        reported = notice.Notice(
            type=notice.NoticeType.SUBNET_MANAGEMENT,
            producer_type=notice.Producer.CLASS_MANAGER,
            trap_number=trap,
            issuer_lid=self.database.own_lid,
            details=notice.GidDetails(gid=gid).encode(),
        )
        self.report(reported, self.database.own_guid)

    def report(self, reported: notice.Notice, issuer_guid: int) -> None:
        """Pass a notice on to who subscribed to its like."""
        database = self.database
        body = notice.NoticeReport(
            **{name: getattr(reported, name) for name in notice.Notice.names()},
            issuer_gid=database.settings.gid_prefix << 64 | issuer_guid,
        )
        for subscription in self.subscriptions:
            if not subscribed(subscription.info, reported):
                continue
            self._tid += 1
            mad = SaMad(
                method=Method.REPORT,
                tid=self._tid,
                attribute=RecordId.NOTICE,
                attribute_offset=10,
                data=body.encode(),
            )
            frame = Frame(subscription.lid, database.own_lid, subscription.qpn, 1, mad.encode())
            self.pending[self._tid] = Report(frame, subscription, 0)

    def confirm(self, tid: int) -> None:
        self.pending.pop(tid, None)

    def poll(self, now_ps: int) -> list[Frame]:
        """Reports to send or to repeat by now."""
        out = []
        for tid, report in list(self.pending.items()):
            if now_ps < report.due_ps:
                continue
            if report.tries == RETRIES:
                del self.pending[tid]
                continue
            report.tries += 1
            report.due_ps = now_ps + TIMEOUT_PS
            out.append(report.frame)
        return out

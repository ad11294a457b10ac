"""The connection manager (`pyverbs.cmid`): not modelled; exchange numbers and keys through Python."""

from __future__ import annotations

from fabrictwin.verbs.attributes.unsupported import Bag, absent

_WHAT = "the twin has no connection manager"


class ConnParam(Bag):
    """Parameters of a connection."""


class JoinMCAttrEx(Bag):
    """Parameters of joining a multicast group."""


class UDParam(Bag):
    """Parameters of a datagram's destination."""


AddrInfo = absent("AddrInfo", _WHAT)
CMEvent = absent("CMEvent", _WHAT)
CMEventChannel = absent("CMEventChannel", _WHAT)
CMID = absent("CMID", _WHAT)

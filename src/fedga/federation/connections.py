"""The connections to the server's door: how many there may be, how long one may say nothing, and what was refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

STRANGERS = 256  # connections on which no site has shown itself yet
OF_ONE_SITE = 64  # Flower's node has a handful
IN_ALL = 4096
SHOW_WITHIN_S = 15.0  # for a stranger to show himself, and for the headers of any request to arrive
STALLS_FOR_S = 60.0  # that nothing of a body may come
LEAST_RATE = 1_000  # bytes per second of a body on the average, beyond that time
TELL_EVERY_S = 60.0
BEGINNING = "at the door"  # of every line that is meant for people

IDLE = "idle connections closed"
UNKNOWN = "connections closed on which no site showed itself"
CROWD = "connections closed of sites that had too many"
FULL = "connections refused since there were too many"
SLOW = "requests cut that came too slowly"
LONG = "requests refused that were too long, for which see largest-reply in federation.toml"

Peer = Any  # host and port of the other end, which are one connection's alone


class TooLongError(Exception):
    """A request has a longer body than those of its kind have, or a reply is longer than any may be."""


class TooSlowError(Exception):
    """The body of a request stalls, or comes in drops."""


class Refusals:
    """What was closed or refused, counted; a line tells of it at most once a minute."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._counts: Counter[str] = Counter()
        self._sites: dict[str, set[str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._fresh = False

    def count(self, what: str, site: str = "") -> None:
        self._counts[what] += 1
        if site:
            self._sites.setdefault(what, set()).add(site)
        if what != IDLE:  # which is nobody's fault
            self._fresh = True
            self._timer = self._timer or asyncio.get_running_loop().call_later(TELL_EVERY_S, self.tell)

    def tell(self) -> None:
        """Say what there was since the start, if there was more than the last time."""
        self._timer = None
        if self._fresh:
            self._tell(f"{BEGINNING}, since it opened: {', '.join(map(self._told, sorted(self._counts)))}")
        self._fresh = False

    def _told(self, what: str) -> str:
        of = ", ".join(sorted(self._sites.get(what, ())))
        return f"{self._counts[what]:,} {what}" + (f" ({of})" if of else "")


class Connections:
    """All that are open. Strangers end soon, and the oldest of them at once if there are many.

    A site shows itself with its first request, so however many connections others open, it has its turn. A site that
    opens ever more connections loses its oldest ones.
    """

    def __init__(self, refusals: Refusals) -> None:
        self.refusals = refusals
        self._strangers: dict[Peer, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}
        self._sites: dict[str, dict[Peer, asyncio.Transport]] = {}
        self._site_of: dict[Peer, str] = {}

    def add(self, transport: asyncio.Transport) -> None:
        if len(self._strangers) + len(self._site_of) >= IN_ALL:
            self.refusals.count(FULL)
            transport.abort()
            return
        peer = peer_of(transport)
        timer = asyncio.get_running_loop().call_later(SHOW_WITHIN_S, self._cut_stranger, peer)
        self._strangers[peer] = (transport, timer)
        if len(self._strangers) > STRANGERS:
            self._cut_stranger(next(iter(self._strangers)))

    def _cut_stranger(self, peer: Peer) -> None:
        self.refusals.count(UNKNOWN)
        self._strangers[peer][0].abort()
        self.remove(peer)

    def shown(self, peer: Peer, site: str) -> None:
        """A request on this connection carries a site's signature."""
        if peer not in self._strangers:
            return
        transport, timer = self._strangers.pop(peer)
        timer.cancel()
        mine = self._sites.setdefault(site, {})
        mine[peer], self._site_of[peer] = transport, site
        if len(mine) > OF_ONE_SITE:
            oldest = next(iter(mine))
            self.refusals.count(CROWD, site)
            mine[oldest].abort()
            self.remove(oldest)

    def cut(self, peer: Peer) -> None:
        """End a connection, whatever is still to be sent on it."""
        if site := self._site_of.get(peer):
            self._sites[site][peer].abort()

    def remove(self, peer: Peer) -> None:
        """It has gone."""
        if found := self._strangers.pop(peer, None):
            found[1].cancel()
        if site := self._site_of.pop(peer, None):
            self._sites[site].pop(peer, None)


class Allowances:
    """How many bytes of a reply a site may still send: a reply begins with a message, and its objects follow."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._left: dict[str, int] = {}

    def renew(self, site: str) -> None:
        self._left[site] = self.most

    def spend(self, site: str, length: int) -> None:
        self._left[site] = self._left.get(site, self.most) - length
        if self._left[site] < 0:
            raise TooLongError


def peer_of(transport: asyncio.Transport) -> Peer:
    return tuple((transport.get_extra_info("peername") or ())[:2])

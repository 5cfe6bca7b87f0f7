"""The connections to the gate: how many there may be, how long one may be silent, and what was refused."""

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

STRANGERS = 256  # connections on which no site has signed a request yet
OF_ONE_SITE = 64  # Flower's node has a handful
IN_ALL = 4096
SIGN_WITHIN_S = 15.0  # for a stranger to sign a request, and for the headers of any request to arrive
STALLS_FOR_S = 60.0  # that nothing of a body may come
LEAST_RATE = 1_000  # bytes per second of a body on average, beyond that time
REPORT_EVERY_S = 60.0

IDLE = "idle connections closed"
UNKNOWN = "connections closed without a signed request"
CROWD = "connections closed of sites that had too many"
FULL = "connections refused since there were too many"
SLOW = "requests cut that came too slowly"
LONG = "requests refused that were too long (largest-reply in federation.toml)"

Peer = Any  # host and port of the other end, which identify one connection


class Refusals:
    """What was closed or refused, counted; reported at most once a minute."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()
        self._sites: defaultdict[str, set[str]] = defaultdict(set)
        self._timer: asyncio.TimerHandle | None = None
        self._fresh = False

    def count(self, what: str, site: str = "") -> None:
        self._counts[what] += 1
        if site:
            self._sites[what].add(site)
        if what != IDLE:  # which is nobody's fault
            self._fresh = True
            self._timer = self._timer or asyncio.get_running_loop().call_later(REPORT_EVERY_S, self.report)

    def report(self) -> None:
        """Say what there was since the start, if there was more than the last time."""
        self._timer = None
        if self._fresh:
            sites = {what: f" ({', '.join(sorted(names))})" for what, names in self._sites.items()}
            parts = [f"{number:,} {what}{sites.get(what, '')}" for what, number in sorted(self._counts.items())]
            text = f"at the door, since it opened: {', '.join(parts)}"
            threading.Thread(target=self._say, args=(text,)).start()  # a terminal that is held up stops no request
        self._fresh = False


class Connections:
    """All that are open. Those on which nobody has signed a request end soon, the oldest at once if there are many.

    So a site has its turn however many connections others open. One that opens ever more loses its oldest ones.
    """

    def __init__(self, refusals: Refusals) -> None:
        self.refusals = refusals
        self._strangers: dict[Peer, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}
        self._known: dict[Peer, tuple[asyncio.Transport, str]] = {}  # with the site, the oldest first

    def add(self, transport: asyncio.Transport) -> None:
        if len(self._strangers) + len(self._known) >= IN_ALL:
            self.refusals.count(FULL)
            transport.abort()
            return
        peer = peer_of(transport)
        timer = asyncio.get_running_loop().call_later(SIGN_WITHIN_S, self._cut_stranger, peer)
        self._strangers[peer] = (transport, timer)
        if len(self._strangers) > STRANGERS:
            self._cut_stranger(next(iter(self._strangers)))

    def _cut_stranger(self, peer: Peer) -> None:
        self.refusals.count(UNKNOWN)
        self._strangers[peer][0].abort()
        self.remove(peer)

    def signed(self, peer: Peer, site: str) -> None:
        """A request on this connection carries a site's signature."""
        if peer not in self._strangers:
            return
        transport, timer = self._strangers.pop(peer)
        timer.cancel()
        self._known[peer] = transport, site
        of_site = [each for each, (_, whose) in self._known.items() if whose == site]
        if len(of_site) > OF_ONE_SITE:
            self.refusals.count(CROWD, site)
            self.cut(of_site[0])
            self.remove(of_site[0])

    def cut(self, peer: Peer) -> None:
        """End a site's connection, whatever is still to be sent on it."""
        if found := self._known.get(peer):
            found[0].abort()

    def remove(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        if found := self._strangers.pop(peer, None):
            found[1].cancel()
        self._known.pop(peer, None)


def peer_of(transport: asyncio.Transport) -> Peer:
    return tuple((transport.get_extra_info("peername") or ())[:2])

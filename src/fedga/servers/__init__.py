"""Server optimisers by name: ours, and the user's own (``fedga.plugins``)."""

from fedga import plugins
from fedga.errors import FedGAError
from fedga.servers.adagrad import Adagrad
from fedga.servers.adam import Adam
from fedga.servers.base import ServerOptimizer
from fedga.servers.check import check_server
from fedga.servers.momentum import Momentum
from fedga.servers.sgd import SGD
from fedga.servers.yogi import Yogi

__all__ = ["SERVERS", "ServerOptimizer", "make_server", "own_servers"]

SERVERS: dict[str, type[ServerOptimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}


def own_servers(*, installed: bool = True) -> dict[str, plugins.Plugin]:
    """The user's own server optimisers by name; their code is not run."""
    return plugins.parts("servers", SERVERS, installed=installed)


def make_server(name: str | ServerOptimizer) -> ServerOptimizer:
    """A server optimiser by name.

    >>> make_server("yogi").default_rate
    0.01
    """
    if isinstance(name, ServerOptimizer):
        return name
    mine = own_servers(installed=name not in SERVERS)
    if name in SERVERS:
        return SERVERS[name]()
    if name not in mine:
        raise plugins.unknown("servers", name, [*SERVERS, *mine])
    found = mine[name].load()
    if not isinstance(found, type) or not issubclass(found, ServerOptimizer):
        raise FedGAError(f"{mine[name]} is not a server optimiser: inherit from fedga.servers.ServerOptimizer")
    server = found()
    check_server(server, name)
    return server

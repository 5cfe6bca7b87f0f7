"""The same algorithms on Flower: its simulation engine, and federations of real machines.

`server_app` and `client_app` are a whole Flower app; `AlgorithmStrategy` and `introduce` are parts for an app of one's
own. Flower is an extra: ``pip install 'fedga[flower]'``.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedga.errors import needs_extra

if TYPE_CHECKING:
    from fedga.flower.client.app import client_app as client_app
    from fedga.flower.client.app import introduce as introduce
    from fedga.flower.server.app import server_app as server_app
    from fedga.flower.server.strategy import AlgorithmStrategy as AlgorithmStrategy

_HOMES = {
    "AlgorithmStrategy": "fedga.flower.server.strategy",
    "client_app": "fedga.flower.client.app",
    "introduce": "fedga.flower.client.app",
    "server_app": "fedga.flower.server.app",
}

__all__ = ["AlgorithmStrategy", "client_app", "introduce", "server_app"]


def require_flower() -> None:
    """Refuse in one sentence where Flower, or the engine of its simulation, is not installed."""
    for package in ("flwr", "ray"):
        if find_spec(package) is None:
            raise needs_extra(package, "flower", "running on Flower")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedga.flower' has no attribute {name!r}")
    require_flower()
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value

"""A federation of real machines: certificates, keys, the gate before Flower's server, and the processes of each side.

This is the only door: what other rooms use is exported here, and an import contract refuses the modules behind it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedga.federation.folder import ServerFolder as ServerFolder
    from fedga.federation.folder import SiteFolder as SiteFolder
    from fedga.federation.folder import admit_key as admit_key
    from fedga.federation.folder import make_server as make_server
    from fedga.federation.folder import make_site as make_site
    from fedga.federation.folder import renew_certificate as renew_certificate
    from fedga.federation.names import parse_parties as parse_parties
    from fedga.federation.server import run_server as run_server
    from fedga.federation.site import run_site as run_site

_MODULES = {
    "folder": ("ServerFolder", "SiteFolder", "admit_key", "make_server", "make_site", "renew_certificate"),
    "names": ("parse_parties",),
    "server": ("run_server",),
    "site": ("run_site",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

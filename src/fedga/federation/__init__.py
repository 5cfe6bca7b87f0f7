"""A federation of real machines, behind its only door: other rooms import what is exported here, and no module."""

from fedga.federation.folder import ServerFolder as ServerFolder
from fedga.federation.folder import SiteFolder as SiteFolder
from fedga.federation.folder import admit_key as admit_key
from fedga.federation.folder import make_server_folder as make_server_folder
from fedga.federation.folder import make_site as make_site
from fedga.federation.folder import renew_certificate as renew_certificate
from fedga.federation.names import parse_parties as parse_parties
from fedga.federation.server import run_server as run_server
from fedga.federation.site import run_site as run_site

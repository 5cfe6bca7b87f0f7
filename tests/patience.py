"""How long a test waits for what another process should do.

Far longer than it takes: the machine may be doing other things, and nothing should be true only because it was quick.
"""

PATIENCE_S = 900.0

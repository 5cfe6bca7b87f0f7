"""What a refusal looks like."""

from __future__ import annotations

from fedga.errors import FedGAError


def one_sentence(error: FedGAError) -> str:
    """Its text, which is one short sentence, and says nothing of settings that have no part in it."""
    said = str(error)
    assert "\n" not in said
    assert len(said) < 1000
    assert "--batch-size" not in said
    return said

"""Is a model forgetting somebody's rare class? ``fedga diagnose``, and :func:`diagnose` for arrays in memory."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedga.diagnosis.diagnosis import Diagnosis as Diagnosis
    from fedga.diagnosis.diagnosis import diagnose as diagnose

__all__ = ["Diagnosis", "diagnose"]


def __getattr__(name: str) -> Any:
    """Loaded when first used: a file can be read while torch is being imported."""
    if name not in __all__:
        raise AttributeError(f"module 'fedga.diagnosis' has no attribute {name!r}")
    from fedga.diagnosis import diagnosis

    return getattr(diagnosis, name)

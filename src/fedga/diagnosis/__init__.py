"""Is a model forgetting somebody's rare class? ``fedga diagnose``, and :func:`diagnose` for arrays in memory."""

from fedga.diagnosis.diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]

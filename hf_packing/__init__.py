"""Sequence packing for Transformers and TRL: leak-free, tight, gradient-exact, fast on any hardware."""

from .errors import ContaminationError, PackingError


__all__ = ["ContaminationError", "PackingError"]

__version__ = "0.1.0"

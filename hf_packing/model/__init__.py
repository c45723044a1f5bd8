"""Model: packed attention, what a model needs, and the proof that nothing leaks."""

from .attention import packed_varlen_attention
from .isolation import IsolationReport, check_isolation
from .support import ModelSupport, inspect_model


__all__ = ["IsolationReport", "ModelSupport", "check_isolation", "inspect_model", "packed_varlen_attention"]

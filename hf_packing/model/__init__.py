"""Model: packed attention, what a model needs, and the proof that nothing leaks."""

from .attention import packed_varlen_attention
from .isolation import IsolationReport, check_isolation
from .state import StateRestart, restart_state
from .support import ModelSupport, inspect_model
from .unwrap import is_sharded


__all__ = [
    "IsolationReport",
    "ModelSupport",
    "StateRestart",
    "check_isolation",
    "inspect_model",
    "is_sharded",
    "packed_varlen_attention",
    "restart_state",
]

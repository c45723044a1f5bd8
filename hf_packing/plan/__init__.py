"""Planning: from sequence lengths to packs, with a proven bound. Pure NumPy/SciPy."""

from .ledger import TokenLedger
from .plan import PackPlan
from .planner import plan_packs
from .policy import Overflow, Strategy


__all__ = ["Overflow", "PackPlan", "Strategy", "TokenLedger", "plan_packs"]

"""Planning: from sequence lengths to packs, with a proven bound. Pure NumPy and SciPy, no token is read.

The mental model, five stages:

    1. pieces       lengths and an overflow policy    -> pieces that fit, and what was cut, dropped, empty
    2. histogram    slots of each piece               -> how often each size occurs, and the pieces in that order
    3. table        sizes and counts                  -> packs as patterns with a multiplicity, and a certificate
    4. arrangement  table and sorted pieces           -> which piece goes where, shuffled if there is a seed
    5. plan         arrangement, ledger, certificate  -> PackPlan

Stage 3 is where packers differ (`histogram`, `exact`, `columns`, `optimal`); it sees distinct sizes only, so that a
billion sequences cost what ten thousand do. Packers that keep an order (`sequential`, `stream`) replace 2 to 4.
"""

from .ledger import TokenLedger
from .plan import PackPlan
from .planner import plan_packs
from .policy import Overflow, Strategy


__all__ = ["Overflow", "PackPlan", "Strategy", "TokenLedger", "plan_packs"]

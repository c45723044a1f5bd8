"""The one family of errors this package raises: what was given, where, the limit, and the remedy."""

__all__ = ["ContaminationError", "PackingError"]


class PackingError(ValueError):
    """Input, settings or a model that packing cannot handle; the message names the place and the remedy."""


class ContaminationError(PackingError):
    """One sequence of a pack changes the outputs of another: the model must not be trained on packs as it is."""

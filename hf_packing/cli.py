"""The command line: hf-packing report | pack | check | train."""


def main() -> None:
    """Entry point of `hf-packing`."""

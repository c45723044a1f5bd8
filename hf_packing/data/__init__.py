"""Data: packed datasets, padding-free batches, and the boundaries between sequences."""

"""Training: normalisation, trainers, metrics."""

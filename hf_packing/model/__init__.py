"""Model: packed attention, what a model needs, and the proof that nothing leaks."""

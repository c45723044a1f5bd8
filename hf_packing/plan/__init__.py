"""Planning: from sequence lengths to packs, with a proven bound. Pure NumPy/SciPy."""

"""Reports: what padding costs and what packing saves."""

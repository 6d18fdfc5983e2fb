"""The chart, and what is generated of it."""

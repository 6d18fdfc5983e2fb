"""In-memory doubles of the ports, for unit tests and simulations."""

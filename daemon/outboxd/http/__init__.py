"""REST, health and metrics: a view on the runtime, never a way around it."""

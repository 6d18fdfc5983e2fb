"""What keeps pipelines running: supervisor, target states, signals, health, and the composition root `App`."""

"""What outboxd says about itself: events, metrics, traces and logs."""

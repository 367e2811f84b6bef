"""Training: schedules and optimizers."""

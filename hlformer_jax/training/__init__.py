"""Training: objective, losses, optimiser, the step and the loop."""

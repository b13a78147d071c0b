"""Report of a run: its attempts, steps, checkpoints, time and cost, as text and as HTML."""

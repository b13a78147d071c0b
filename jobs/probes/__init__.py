"""Probes that run at the desk: read-only calls, and what jobs have left behind."""

"""Scheduled Lambda functions: notifications about runs, and moving jobs between zones."""

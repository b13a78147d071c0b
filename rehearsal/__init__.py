"""Rehearses deployment, jobs and teardown on this machine, without an AWS account."""

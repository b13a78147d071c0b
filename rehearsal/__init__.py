"""Deploys, runs and destroys everything on this machine, without an AWS account."""

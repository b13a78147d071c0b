"""A program's requirements: one job collects missing packages, and each node installs them."""

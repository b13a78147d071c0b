"""A program's requirements: a job collects what the image lacks, and each node installs it."""

"""Side-by-side benchmarks: ratios of this project to baselines, measured in one run."""

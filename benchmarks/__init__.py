"""Side-by-side benchmarks: ratios of the product to a baseline, measured in one run."""

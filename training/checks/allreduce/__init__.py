"""The all-reduce workload: are the sums right, and how fast are they?"""

"""Random faults of processes, networks and storage against whole training runs, seeded."""

"""Why a run waits, is silent or has failed: evidence, a table of causes, and their ranking."""

"""Diagnosis of runs that wait, print nothing or have failed: evidence, causes and ranking."""

"""Emulators of AWS and Kubernetes for a rehearsal; they depend only on its catalogue."""

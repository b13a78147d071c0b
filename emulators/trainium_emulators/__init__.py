"""Emulators of AWS and Kubernetes for a rehearsal; they know no part of it but the catalogue."""

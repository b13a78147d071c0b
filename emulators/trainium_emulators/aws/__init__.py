"""AWS on loopback: moto, and what moto lacks."""

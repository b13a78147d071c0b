"""AWS on loopback: moto, plus what moto lacks."""

"""AWS emulated on loopback: moto, extended with the parts that it lacks."""

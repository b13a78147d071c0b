"""Reserved capacity, as named in the configuration."""

from __future__ import annotations

from stacks.config import AppConfig
from trainium_constructs import Reservation


def reservation_of(config: AppConfig) -> Reservation | None:
    """Return the reservation in which to launch nodes; None if capacity is not reserved."""
    if config.capacity_block_id is not None:
        return Reservation(reservation_id=config.capacity_block_id, is_block=True)
    if config.capacity_reservation_id is not None:
        return Reservation(reservation_id=config.capacity_reservation_id)
    return None

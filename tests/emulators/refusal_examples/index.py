"""All examples by the id of their row."""

from __future__ import annotations

from tests.emulators.refusal_examples import batch, eks, network, storage
from tests.emulators.refusal_examples.example import Example

EXAMPLES: dict[str, Example] = {
    **batch.EXAMPLES,
    **network.EXAMPLES,
    **eks.EXAMPLES,
    **storage.EXAMPLES,
}
SUBMISSIONS = batch.SUBMISSIONS
TEMPLATES = storage.TEMPLATES

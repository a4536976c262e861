"""The real loop on a virtual clock, under a seeded plan of faults, held to invariants after every event."""

"""Everything that comes in: consumers kept alive, deliveries dispatched, checked, settled."""

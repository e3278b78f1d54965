"""Everything that goes out: prepared, queued, sent in batches, confirmed."""

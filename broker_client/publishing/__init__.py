"""The publishing side: messages prepared, queued, sent in batches and confirmed."""

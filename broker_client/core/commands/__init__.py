"""What may be asked of the core: declare, publish, consume, administrate."""

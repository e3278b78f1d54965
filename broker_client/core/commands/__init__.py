"""The commands of the core: declare, publish, consume, administrate."""

"""What users observe: delivery events and their log, statistics, health."""

"""Building blocks: owned tasks, emitters, clocks, deadlines, file locks."""

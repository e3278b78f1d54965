"""What everything runs on: tasks with an owner, emitters, clocks, deadlines, file locks."""

"""The broker's decisions, pure: commands in with the time, ordered effects out."""

"""The broker's decisions, as pure code: commands and the time in, ordered effects out."""

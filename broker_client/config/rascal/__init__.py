"""A configuration of rascal's turned into one of ours."""

"""A configuration and its handlers as an AsyncAPI document, in JSON or as a page."""

"""An application's content as bytes and back: by content type, and encrypted."""

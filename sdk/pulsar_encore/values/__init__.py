"""Values that several packages share. Nothing here does I/O."""

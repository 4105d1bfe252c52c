"""What becomes of a failed message, and letters: from the verdict to the copy that is stored."""

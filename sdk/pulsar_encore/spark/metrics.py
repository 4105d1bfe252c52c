"""What a streaming query says of itself."""

"""Dead letters in bulk: counted, kept, drawn and sent back."""

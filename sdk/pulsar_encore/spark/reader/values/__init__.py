"""What becomes of a message's value: columns of Arrow, by the format that the options say."""

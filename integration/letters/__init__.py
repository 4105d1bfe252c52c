"""What the letter tests need beside a broker: Java's client, and a consumer to be killed."""

"""Workers in processes of their own on a real Pulsar: signals, restarts, order, and letters."""

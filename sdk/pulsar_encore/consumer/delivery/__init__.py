"""What arrived, until the application has it: the queue, batches, the listener."""

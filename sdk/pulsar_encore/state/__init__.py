"""What survives the process: stores on disk for what a consumer knows."""

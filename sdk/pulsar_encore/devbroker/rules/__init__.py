"""Rules of the development broker, without event loop, clock, sockets and logging."""

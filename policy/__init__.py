"""What a jail allows: pure decisions, no processes, no ctypes, no sockets, no git."""

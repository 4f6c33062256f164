"""Watching what a command wants: path system calls, told and let go on. Nothing is decided here."""

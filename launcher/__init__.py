"""What acts: the command line, sessions, and the jail between fork and exec."""

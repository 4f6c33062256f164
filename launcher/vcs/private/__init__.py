"""Private git directories: what is kept of them (`record`), who uses them (`lock`), how they are made and kept true."""

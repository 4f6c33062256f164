"""Private git directories: what is known of them (`record`), who uses them (`lock`, `lease`), how they are made."""

"""Between fork and exec: everything the kernel is asked to enforce."""

"""Paddock's systemd units: their text, the files that hold it, and the manager that reads them."""

"""What is known about each session while its requests flow."""

"""What was really enforced, and what was denied."""

"""What stands between an agent in its jail and programmes that are not in it."""

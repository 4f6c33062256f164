"""The Agent Client Protocol between an editor and an agent in its jail (`paddock acp`)."""

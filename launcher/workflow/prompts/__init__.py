"""Pieces of text for the prompts of particular agents."""

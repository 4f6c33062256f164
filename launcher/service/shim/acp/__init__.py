"""Agents of the Agent Client Protocol that live in the service, while editors come and go."""

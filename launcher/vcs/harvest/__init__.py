"""Harvest: commits cross from a private git directory into the main repository, as a pack stream and object ids."""

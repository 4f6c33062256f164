"""Opening, reading, replacing, walking and removing files in trees that an adversary may change meanwhile."""

"""Configuration: TOML layers are read, and become one set of settings whose every value knows its source."""

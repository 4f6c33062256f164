"""Configuration: TOML layers become models, and the models one set of settings whose every value knows its source."""

"""The process that a supervised session belongs to: its launcher, streams, log and clients."""

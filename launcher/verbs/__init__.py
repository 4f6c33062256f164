"""One module per verb: parse, call, print."""

"""The page: what the service knows and does, in a browser, for the user whose service it is."""

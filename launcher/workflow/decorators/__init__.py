"""What is done to every request, result and dispatch on its way, in a stated order."""

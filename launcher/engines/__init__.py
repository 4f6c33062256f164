"""What performs the rows of a batch: this machine (`local`), or a Ray cluster (`ray`), by one function of bytes."""

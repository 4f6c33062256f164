"""The jail's own view of the machine: what is mounted where (`layout`), and how it is built (`view`)."""

"""The control API: who may speak, what can be asked, how it is answered."""

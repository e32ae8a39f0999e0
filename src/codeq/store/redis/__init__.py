"""How does Redis store tasks? One table of keys, one atomic script per verb. Imports `store.interface` and `domain`."""

"""How tasks are stored: the contract of a store, its engines, and the data directory. Imports domain."""

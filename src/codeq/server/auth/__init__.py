"""Who is calling: tokens, their validators, and the tenant of a token. Imports domain and wire."""

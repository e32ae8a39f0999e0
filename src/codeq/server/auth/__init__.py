"""Who is calling: tokens, their validators, and the tenant they speak for."""

"""`codeq demo`: the whole product end to end in about a minute, with kills, and an audit of what came of it."""

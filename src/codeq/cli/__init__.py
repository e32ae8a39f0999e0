"""What can be done from a shell: one file per command, or per group of commands.

May import every other package; no package imports it.
"""

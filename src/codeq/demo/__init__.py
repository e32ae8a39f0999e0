"""Whether the product keeps its promises while its processes are killed: runs it end to end, then audits every task.

May import everything but `cli`; `codeq.cli.demo` calls it. Other packages do not import it.
"""

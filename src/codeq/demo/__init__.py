"""Does the product keep its promises while its processes are killed? Runs it end to end, then audits every task.

May import everything but `cli`; `codeq.cli.demo` calls it. Other packages do not import it.
"""

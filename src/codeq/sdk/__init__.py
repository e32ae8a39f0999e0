"""What programs call: one set of verbs for a server over HTTP and for the queue inside the process, and workers."""

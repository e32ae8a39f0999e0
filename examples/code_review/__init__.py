"""A code-review application on a priority queue: webhooks come in, pull requests are reviewed before pushes.

In the order in which to read it:

    reviews.py      the values: a request for a review, a review, a finding
    providers.py    the bodies that GitHub, GitLab and Gitea send, and the request in each
    signatures.py   who sent it
    database.py     every change of state, as one transaction each; the outbox
    relay.py        moves the outbox into the queue
    queues.py       what the application asks of a queue; codeq.priority and codeQ answer
    git_changes.py  what changed, read from a local git repository
    reviewers.py    the reviewer interface, and the reviewers: ruff, size, unread files
    model_reviewer.py  a reviewer that asks a language model
    worker.py       claims, reviews, stores
    web.py          the HTTP service; page.py is what people see
    sample.py       a sample repository and its webhooks
    run_all.py      `make code-review`
"""

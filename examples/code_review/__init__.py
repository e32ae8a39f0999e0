"""A code-review application on a priority queue: webhooks come in, pull requests are reviewed before pushes.

In the order in which to read it:

    reviews.py            the values: a request for a review, a review, a finding
    signatures.py         who sent a webhook
    providers.py          what GitHub, GitLab and Gitea send, and the request for a review in it
    database.py           every change of state, as one transaction each; the outbox
    relay.py              moves the outbox into the queue
    queues.py             what the application asks of a queue; codeq.priority and codeQ answer
    worker.py             claims, reviews, stores
    git_changes.py        what changed, read from a local git repository
    reviewers.py          the reviewer interface, and three reviewers: ruff, size, what was not read
    model_reviewer.py     a reviewer that asks a language model
    bounded_process.py    runs git, ruff and models, with bounds
    web.py                the HTTP service; page.py is what people see
    settings.py           the environment variables
    sample_repository.py  a sample, with its webhooks in sample_webhooks.py
    run_all.py            `make code-review`
"""

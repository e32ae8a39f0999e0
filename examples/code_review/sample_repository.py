"""Makes a small git repository with a few branches worth reviewing, and the webhooks that announce them."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from . import sample_webhooks as webhooks
from .sample_webhooks import Commits, Webhook

REPOSITORY = "acme/shop"

_CART = '''"""A shopping cart."""


class Cart:
    def __init__(self):
        self.items = []

    def add(self, name, price):
        self.items.append((name, price))

    def total(self):
        return sum(price for _, price in self.items)
'''
_DISCOUNT = (
    _CART
    + """
    def discounted(self, codes=[]):
        codes.append("WELCOME")
        for code in codes:
            try:
                rate = RATES[code]
            except:
                pass
        return self.total() * (1 - rate)
"""
)
_EXPORT = '''"""Exports carts to the warehouse."""

import json
import os
import subprocess


def export(cart, host):
    text = json.dumps(cart.items)
    subprocess.run(f"echo '{text}' | ssh {host} receive", shell=True)
'''
_CATALOGUE = '"""Prices, imported by hand."""\n\nPRICES = {\n' + "".join(
    f'    "article-{number:04}": {number % 97}.90,\n' for number in range(450)
) + "}\n"  # fmt: skip


class GitRepository:
    """A git repository with a working copy, for making commits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def git(self, *arguments: str) -> str:
        identity = {"NAME": "Ada", "EMAIL": "ada@example.org", "DATE": "2026-05-04T09:30:00+02:00"}
        people = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in identity.items()}
        bare = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        command = ["git", "-C", str(self.folder), *arguments]
        return subprocess.run(
            command, env={**bare, **people}, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, branch: str, files: Mapping[str, str], message: str, *, start: str = "main") -> tuple[str, str]:
        """Commits the files to the branch, made at `start` if it is new. Returns the commits before and after."""
        is_known = bool(self.git("branch", "--list", branch))
        if self.git("branch", "--list"):
            self.git("checkout", "--quiet", *([branch] if is_known else ["-b", branch, start]))
        before = self.git("rev-parse", branch) if is_known else webhooks.ABSENT
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return before, self.git("rev-parse", "HEAD")


def make_repository(folder: Path) -> GitRepository:
    """Makes an empty repository, whose first commit goes to `main`."""
    folder.mkdir(parents=True)
    repository = GitRepository(folder)
    repository.git("init", "--quiet", "--initial-branch=main")
    return repository


def make_sample(repositories: Path, secrets: Mapping[str, str]) -> list[Webhook]:
    """Makes the sample repository. Returns the webhooks of its pushes and pull requests, in the order of the events.

    Every commit is the same each time, so a sample that is made again announces nothing new.
    """
    repository = make_repository(repositories / REPOSITORY)
    _, first = repository.commit("main", {"shop/cart.py": _CART}, "Start with a cart")

    def changed(branch: str, files: Mapping[str, str], message: str, author: str) -> Commits:
        before, after = repository.commit(branch, files, message, start=first)
        return Commits(repository=REPOSITORY, branch=branch, base=before, head=after, message=message, author=author)

    def pull(branch: str, files: Mapping[str, str], message: str, author: str) -> Commits:
        _, after = repository.commit(branch, files, message, start=first)
        return Commits(repository=REPOSITORY, branch=branch, base=first, head=after, message=message, author=author)

    export = changed("main", {"shop/export.py": _EXPORT}, "Export carts to the warehouse", "ada")
    readme = changed("main", {"README.md": "# Shop\n\nSells things.\n"}, "Say what this is", "ada")
    notes = changed("notes", {"notes.py": "import sys\n\nprint('hello')\n"}, "Try something", "linus")
    discount = pull("discount", {"shop/cart.py": _DISCOUNT}, "Welcome discount", "grace")
    catalogue = pull("catalogue", {"shop/catalogue.py": _CATALOGUE}, "Import the catalogue", "alan")
    typo = pull("typo", {"shop/cart.py": _CART.replace("A shopping", "The shopping")}, "Fix a typo", "barbara")
    return [
        webhooks.github_push(export, secrets["github"]),
        webhooks.gitlab_push(readme, secrets["gitlab"]),
        webhooks.gitea_push(notes, secrets["gitea"]),
        webhooks.github_pull(discount, secrets["github"], number=7),
        webhooks.gitlab_merge(catalogue, secrets["gitlab"], number=3),
        webhooks.gitea_pull(typo, secrets["gitea"], number=12),
    ]

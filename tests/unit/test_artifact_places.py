"""Which places for artifacts the setting `artifacts.url` may name."""

from pathlib import Path

import pytest
from obstore.store import AzureStore

from codeq.domain.errors import InvalidRequest
from codeq.store.object_storage import DirectoryObjects, open_objects


@pytest.mark.parametrize("url", ["file://{}/a b", "file://{}/a%20b", "file://localhost{}/a%20b"])
def test_a_directory_is_named_from_the_root(url: str, tmp_path: Path) -> None:
    opened = open_objects(url.format(tmp_path))
    assert isinstance(opened, DirectoryObjects)
    assert opened._root == tmp_path / "a b"


@pytest.mark.parametrize(
    "url", ["file://data/files", "file://./files", "file://~/files", "file://", "file:///", "files"]
)
def test_what_names_another_place_than_it_seems_to_is_refused(url: str) -> None:
    """`file://data/files` is /files to every parser."""
    with pytest.raises(InvalidRequest, match=r"artifacts\.url"):
        open_objects(url)


def test_a_container_of_azure_is_that_of_the_account_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "ours")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    store = open_objects("az://files/codeq")._store
    assert isinstance(store, AzureStore)
    assert (store.config["container_name"], store.prefix) == ("files", "codeq")

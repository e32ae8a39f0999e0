"""The address of a lake: a folder or a URL, never with a secret in it."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from codeq.errors import InvalidRequest
from codeq.pipeline.lake.folder import file_at, files_at, folder_of


def test_a_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("lake", "./lake", Path("lake"), f"file://{tmp_path}/lake", folder_of("lake")):
        folder = folder_of(address)
        assert (str(folder), folder.is_local, folder.name) == (f"{tmp_path}/lake", True, "lake")
        assert os.fspath(folder / "bronze") == f"{tmp_path}/lake/bronze"
    for name in ("s3", "a:b", "2026:11"):
        assert str(folder_of(f"./{name}")) == f"{tmp_path}/{name}" == str(folder_of(name))
    assert str(folder_of(f"file://{tmp_path}/a%20b")) == f"{tmp_path}/a b"
    assert str(folder_of("./s3:/lake")) == f"{tmp_path}/s3:/lake"


@pytest.mark.parametrize("name", ["user%40example.org", "a\\b", "a\nb", "caf\udce9"])
def test_a_folder_that_delta_takes_for_another_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="the folder of a lake cannot be"):
        folder_of(tmp_path / name)


@pytest.mark.parametrize("name", ["100%", "a [b]{c}*?#&=+~:;|\"'", "café", "a b"])
def test_a_table_is_where_its_folder_is(name: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / name)
    DeltaTable.create(str(folder), Schema.from_arrow(pa.schema([("number", pa.int64())])))
    assert folder.holds_table()
    assert (Path(folder) / "_delta_log").is_dir()


@pytest.mark.parametrize(
    ("address", "becomes"),
    [
        ("s3://bucket/a/lake/", "s3://bucket/a/lake"),
        ("s3://bucket//a//lake", "s3://bucket/a/lake"),
        ("s3a://bucket/lake", "s3://bucket/lake"),
        ("s3://bucket", "s3://bucket"),
        ("gs://bucket/lake", "gs://bucket/lake"),
        ("abfss://container@account.dfs.core.windows.net/lake", "abfss://container@account.dfs.core.windows.net/lake"),
        ("hdfs://namenode:8020/lake", "hdfs://namenode:8020/lake"),
    ],
)
def test_an_address_of_a_store_is_kept_in_one_form(address: str, becomes: str) -> None:
    folder = folder_of(address)
    assert str(folder) == becomes
    assert not folder.is_local
    with pytest.raises(TypeError):
        os.fspath(folder)


@pytest.mark.parametrize(
    "address",
    [
        "s3://key:hidden@bucket/lake",
        "s3://hidden@bucket/lake",
        "s3://bucket/lake?secret_access_key=hidden",
        "abfss://container:hidden@account/lake",
        "gs://bucket/lake#hidden",
        "s3:///lake",
        "s3://bucket/../hidden",
        "https://bucket/lake",
        "S3X://bucket/lake",
        "s3:/hidden/lake",
        "S3:hidden/lake",
        "dbfs:/hidden/lake",
        "file:/hidden",
        "file://hidden/lake",
        "",
        " ",
    ],
)
def test_an_address_with_a_secret_or_of_no_store_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        folder_of(address)
    assert "hidden" not in str(refusal.value)


def test_executors_get_the_variables_of_the_store_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "HOME_OF_MINE"):
        monkeypatch.setenv(name, "x")
    assert folder_of("s3://bucket/lake").environment()["AWS_PROFILE"] == "x"
    assert set(folder_of("gs://bucket/lake").environment()) == {"GOOGLE_APPLICATION_CREDENTIALS"}
    assert set(folder_of("abfss://c@a/lake").environment()) == {"AZURE_STORAGE_ACCOUNT_KEY"}
    assert folder_of("lake").environment() == {}


def test_files_are_found_below_the_root_of_their_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    system, paths = files_at(["s3://elsewhere/lake/a=b/1", "s3://elsewhere/lake/2"])
    assert paths == ["lake/a=b/1", "lake/2"]
    assert file_at("s3://elsewhere/other/3")[0] is system, "one set of connections for a bucket"

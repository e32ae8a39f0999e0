"""RocksDB options whose loss no other test would detect, only slowness: read from the options that RocksDB reports."""

from pathlib import Path

import pytest

from codeq.store.rocksdb.database import Database


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("store") / "rocksdb"
    folder.parent.mkdir(exist_ok=True)
    Database(folder).close()
    return max(folder.glob("OPTIONS-*")).read_text()


@pytest.mark.parametrize("option", ["partition_filters=true", "index_type=kTwoLevelIndexSearch"])
def test_filters_are_kept_in_pieces_that_fit_the_cache(settings: str, option: str) -> None:
    """Otherwise looking up a new idempotency key beside a long history reads a megabyte."""
    assert option in settings


@pytest.mark.parametrize("option", ["memtable_whole_key_filtering=true", "memtable_prefix_bloom_size_ratio=0.05"])
def test_a_new_key_is_not_searched_for_in_every_buffer(settings: str, option: str) -> None:
    assert option in settings


@pytest.mark.parametrize("option", ["wal_recovery_mode=kTolerateCorruptedTailRecords", "paranoid_checks=true"])
def test_damage_is_found_and_not_passed_over(settings: str, option: str) -> None:
    assert option in settings

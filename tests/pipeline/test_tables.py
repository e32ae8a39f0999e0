"""Every table of the lake describes itself: names, keys, columns."""

from codeq.pipeline.lake import tables
from codeq.wire import events


def test_bronze_has_the_columns_of_an_event() -> None:
    kinds = {"int32": "int", "int64": "bigint", "string": "string", "timestamp": "timestamp"}
    expected = [(name, kinds[kind]) for name, kind, _ in events.COLUMNS]
    assert [(c.name, c.kind.simpleString()) for c in tables.BRONZE_EVENTS.columns] == expected


def test_every_table_says_what_it_is_made_of() -> None:
    assert len({table.name for table in tables.ALL}) == len(tables.ALL)
    for table in tables.ALL:
        assert len(set(table.names)) == len(table.names)
        assert set(table.keys) < set(table.names)
        assert table.partition in (None, "hour", *table.names)
        assert all(column.text.endswith(".") for column in table.columns)
        assert not any(column.merge for column in table.columns if column.name in table.keys)
        assert [field.name for field in table.schema] == table.names


def test_gold_is_split_by_day_or_hour_and_silver_by_whether_it_is_open() -> None:
    splits = {"bronze": (None,), "silver": ("is_open",), "audit": (None,), "gold": ("day", "hour")}
    for table in tables.ALL:
        assert table.partition in splits[table.name.split("_")[0]]

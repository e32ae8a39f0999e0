"""How one shard is stored on RocksDB. Imports domain, `store.interface` and `store.codec`."""

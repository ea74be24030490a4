"""Everything that touches a disk. Only `durable.files` publishes; bytes are verified on read."""

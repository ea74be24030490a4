"""Generation engines: adapters of the port `GenerationEngine`."""

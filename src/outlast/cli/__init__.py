"""The command line: wires adapters to the runtime, and shows what stands on disk."""

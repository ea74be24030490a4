"""The controller and its pumps. asyncio lives here; the runtime knows ports, never adapters."""

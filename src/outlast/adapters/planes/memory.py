"""The default data plane: rows in this process, appended to segments as they are sealed.

Everything is `SegmentedPlane`'s; nothing lives beside it. May import: `planes.segmented`.
"""

from __future__ import annotations

from outlast.adapters.planes.segmented import SegmentedPlane


class MemoryPlane(SegmentedPlane):
    """`DataPlane` over a dictionary and a `SegmentStore`."""

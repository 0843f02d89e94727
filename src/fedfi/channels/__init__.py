"""Channel groups: which axes of which parameters are one and the same channel axis, for any network.

`discover` finds them; a `Wiring` slices a physically smaller network, writes it back, and permutes channels.
"""

from fedfi.channels.architecture import architecture_key
from fedfi.channels.changes import changed_attributes
from fedfi.channels.discovering import discover
from fedfi.channels.grouping import Frozen
from fedfi.channels.slicing import Group, Member
from fedfi.channels.wiring import Units, Wiring

__all__ = ["Frozen", "Group", "Member", "Units", "Wiring", "architecture_key", "changed_attributes", "discover"]

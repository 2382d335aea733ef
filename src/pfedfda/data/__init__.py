"""Images and who holds them: sources, partitions, and the federations they make."""

from pfedfda.data.catalogue import FEDERATIONS, SOURCES, open_source
from pfedfda.data.corruptions import CORRUPTIONS, corrupt
from pfedfda.data.federation import (
    PARTITIONS,
    ClientData,
    Federation,
    FederationConfig,
)
from pfedfda.data.preparing import prepare
from pfedfda.data.sources import Dataset, Source
from pfedfda.data.store import default_cache

__all__ = [
    "CORRUPTIONS",
    "FEDERATIONS",
    "PARTITIONS",
    "SOURCES",
    "ClientData",
    "Dataset",
    "Federation",
    "FederationConfig",
    "Source",
    "corrupt",
    "default_cache",
    "open_source",
    "prepare",
]

"""Samples and who holds them: sources, partitions, and the federations they make."""

from pfedfda.data.catalogue import FEDERATIONS, SOURCES, open_source
from pfedfda.data.corruptions import CORRUPTIONS, corrupt
from pfedfda.data.federation import (
    PARTITIONS,
    ClientData,
    Federation,
    FederationConfig,
)
from pfedfda.data.from_arrays import federation_from_arrays
from pfedfda.data.preparing import prepare
from pfedfda.data.preprocessing import Preprocessing
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
    "Preprocessing",
    "Source",
    "corrupt",
    "default_cache",
    "federation_from_arrays",
    "open_source",
    "prepare",
]

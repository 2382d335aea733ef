"""Images and who holds them: sources, partitions, and the federations they make."""

from pfedfda.data.federation import (
    PARTITIONS,
    ClientData,
    Federation,
    FederationConfig,
    default_cache,
    prepare,
)
from pfedfda.data.sources import ImageSet, Source, open_source

__all__ = [
    "PARTITIONS",
    "ClientData",
    "Federation",
    "FederationConfig",
    "ImageSet",
    "Source",
    "default_cache",
    "open_source",
    "prepare",
]

"""The metadata repository (vmr): assigns positions to entries and keeps the streams running."""

from loomlog.metadata.server import MetadataRepository

__all__ = ["MetadataRepository"]

"""The metadata repository (vmr): gives every entry its place, and keeps the streams running."""

from loomlog.metadata.server import MetadataRepository

__all__ = ["MetadataRepository"]

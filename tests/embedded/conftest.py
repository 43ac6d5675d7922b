"""What the tests of this folder share."""

from tests.kafka.secured import secured_cluster

__all__ = ["secured_cluster"]

"""What keeps a recall from reading a replica that lacks a committed effect: delivery of watermarks, and a lease."""

from aftermind.freshness.effects import Effects
from aftermind.freshness.replica_lease import Passed, ReplicaLease
from aftermind.freshness.watermark_delivery import WatermarkDelivery

__all__ = ["Effects", "Passed", "ReplicaLease", "WatermarkDelivery"]
